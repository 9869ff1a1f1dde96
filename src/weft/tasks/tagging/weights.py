"""Options and vocabularies that the weights of a tagger depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.training.weight_compatibility import Part, Weights, encoder_parts, in_table, stack_options

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.label_tokenizer import LabelTokenizer


def _parts(config: RunConfig, vocabulary: LabelTokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    head = {"labels": list(vocabulary.labels.names)}
    parts = encoder_parts(config, vocabulary.tokenizer, layers, max_length=config.data.max_length, head=head)
    encoder = config.model.resolved_char_encoder()
    if encoder is not None and vocabulary.char_tokenizer is not None:
        options = {**stack_options(encoder, encoder.num_layers), "pooling": encoder.pooling}
        parts["char_encoder"] = Part(in_table("model.char_encoder", options) | {"chars": vocabulary.char_tokenizer.hash[:8]})
    return parts


WEIGHTS = Weights(_parts)
