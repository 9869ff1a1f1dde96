"""The weights of seq2seq models for fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.tasks.encoder_decoder.weights import encoder_decoder_parts, encoder_decoder_weights
from weft.training.weight_compatibility import Part, no_noise_tokens

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizer_pair import TokenizerPair


def _parts(config: RunConfig, vocabulary: TokenizerPair, layers: Mapping[str, int]) -> dict[str, Part]:
    return encoder_decoder_parts(config, vocabulary.source, vocabulary.target, layers)


WEIGHTS = encoder_decoder_weights(_parts, no_noise_tokens)
