"""The weights of question answering models for fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.training.weight_compatibility import Part, Weights, encoder_parts, tokenizer_options

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


def _parts(config: RunConfig, vocabulary: Tokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    return encoder_parts(config, vocabulary, layers, max_length=config.data.max_length, head=tokenizer_options(vocabulary))


WEIGHTS = Weights(_parts)
