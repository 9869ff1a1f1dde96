"""Options that the weights of a reward model depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.training.weight_compatibility import Part, Weights, encoder_parts

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


def _parts(config: RunConfig, vocabulary: Tokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    head = {"data.prompt_column": config.data.prompt_column is not None}
    return encoder_parts(config, vocabulary, layers, max_length=config.data.max_length, head=head)


WEIGHTS = Weights(_parts)
