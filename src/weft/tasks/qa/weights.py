"""What the weights of question-answering models mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.train.meaning import Part, Weights, encoder_parts, words_of

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer


def _parts(settings: Settings, vocabulary: Tokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    return encoder_parts(settings, vocabulary, layers, longest=settings.data.longest, head=words_of(vocabulary))


WEIGHTS = Weights(_parts)
