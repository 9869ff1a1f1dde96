"""What the weights of taggers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.train.meaning import Part, Weights, encoder_parts, in_table, stack_options

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.text.labelled_tokens import LabelledTokens


def _parts(settings: Settings, vocabulary: LabelledTokens, layers: Mapping[str, int]) -> dict[str, Part]:
    head = {"labels": list(vocabulary.labels.names)}
    parts = encoder_parts(settings, vocabulary.tokenizer, layers, longest=settings.data.longest, head=head)
    spelling = settings.model.letters()
    if spelling is not None and vocabulary.letters is not None:
        letters = {**stack_options(spelling, spelling.layers), "pool": spelling.pool}
        parts["spelling"] = Part(in_table("model.spelling", letters) | {"letters": vocabulary.letters.hash[:8]})
    return parts


WEIGHTS = Weights(_parts)
