"""The weights of denoising models for fine-tuning: those of a seq2seq model, and rows for the noise tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.tasks.encoder_decoder.weights import encoder_decoder_parts, encoder_decoder_weights
from weft.training.weight_compatibility import Part

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


def _parts(config: RunConfig, vocabulary: Tokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    return encoder_decoder_parts(config, vocabulary, vocabulary, layers)


def _num_noise_tokens(config: RunConfig) -> int:
    return int(config.data.num_noise_tokens)


WEIGHTS = encoder_decoder_weights(_parts, _num_noise_tokens)
