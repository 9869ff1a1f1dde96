"""The weights of models that respond, for fine-tuning: those of language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.training.weight_compatibility import Part, Weights, encoder_parts, no_noise_tokens, tokenizer_options

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


def _parts(config: RunConfig, vocabulary: Tokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    return encoder_parts(config, vocabulary, layers, max_length=config.data.max_length, head=tokenizer_options(vocabulary))


def _encoder_name(name: str) -> str:
    """The name that a weight has in an encoder."""
    if name.startswith("head."):
        return name
    return "encoder.embedder.embedding.weight" if name == "embedding.weight" else f"encoder.{name}"


WEIGHTS = Weights(_parts, encoder_name=_encoder_name, num_noise_tokens=no_noise_tokens, is_causal=True)
