"""What the weights of taggers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.training.weight_compatibility import Part, Weights, encoder_parts, in_table, stack_options

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.label_tokenizer import LabelTokenizer


def _parts(config: RunConfig, vocabulary: LabelTokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    head = {"labels": list(vocabulary.labels.names)}
    parts = encoder_parts(config, vocabulary.tokenizer, layers, max_length=config.data.longest, head=head)
    spelling = config.model.letters()
    if spelling is not None and vocabulary.char_tokenizer is not None:
        letters = {**stack_options(spelling, spelling.layers), "pool": spelling.pool}
        parts["spelling"] = Part(in_table("model.char_encoder", letters) | {"letters": vocabulary.char_tokenizer.hash[:8]})
    return parts


WEIGHTS = Weights(_parts)
