"""What the weights of classifiers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.train.meaning import Part, Weights, encoder_parts

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.text.labelled_tokens import LabelledTokens


def _parts(settings: Settings, vocabulary: LabelledTokens, layers: Mapping[str, int]) -> dict[str, Part]:
    head = {"labels": list(vocabulary.labels.names), "data.multi": settings.data.multi}
    return encoder_parts(settings, vocabulary.tokenizer, layers, longest=settings.data.longest, head=head)


WEIGHTS = Weights(_parts)
