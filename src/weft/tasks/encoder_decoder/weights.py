"""The weights of encoder-decoders for fine-tuning: two stacks and the attention between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weft.models.decoder_names import name_in_decoder
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.training.weight_compatibility import (
    ABSENT,
    HEAD_OPTIONS,
    SHAPE_OPTIONS,
    TIE_OPTIONS,
    TRAIN_ONLY_OPTIONS,
    Part,
    Weights,
    attention_span,
    head_options,
    in_table,
    one_value,
    stack_options,
    tokenizer_options,
)

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


def _cross_attention(config: Seq2SeqConfig, layers: int) -> dict[str, Any]:
    """The options of the decoder's attention to the source."""
    ignored = TRAIN_ONLY_OPTIONS | SHAPE_OPTIONS | HEAD_OPTIONS | TIE_OPTIONS
    options = {name: getattr(config, name) for name in type(config).model_fields if name not in ignored}
    if config.decoder.traits.attends:
        heads = [config.decoder.cross_heads_in_layer(layer)[0] for layer in range(layers)]
        return options | {"decoder.num_cross_heads": one_value(heads)}
    if config.attention == "none":  # optional in recurrent decoders
        return {name: ABSENT for name in options}
    return options


def encoder_decoder_parts(
    config: RunConfig, source: Tokenizer, target: Tokenizer, layers: Mapping[str, int]
) -> dict[str, Part]:
    """The parts of an encoder-decoder with the tokenizers of its source and its target."""
    model, max_length = config.model, config.data.max_length
    parts = {}
    for side, table, tokens in (("encoder", model.encoder, source), ("decoder", model.decoder, target)):
        parts[f"{side}.embedder"] = Part(tokenizer_options(tokens))
        options = in_table(f"model.{side}", stack_options(table, layers[side]))
        parts[f"{side}.stack"] = Part(options, attention_span(table, max_length))
    parts["joint"] = Part(in_table("model", _cross_attention(model, layers["decoder"])))
    parts["shared"] = Part({"model.share_embeddings": model.share_embeddings})
    parts["head"] = Part(in_table("model", head_options(model)) | tokenizer_options(target))
    return parts


def _layers(model: Seq2SeqConfig) -> dict[str, int]:
    return {"encoder": model.encoder.num_layers, "decoder": model.decoder.num_layers}


def _scales(model: Seq2SeqConfig) -> dict[str, float]:
    from weft.models.seq2seq import embedding_scales

    source, target = embedding_scales(model)
    return {"encoder": source, "decoder": target}


def encoder_decoder_weights(
    parts: Callable[[RunConfig, Any, Mapping[str, int]], dict[str, Part]], num_noise_tokens: Callable[[RunConfig], int]
) -> Weights:
    """The weights of a task whose models are encoder-decoders."""
    return Weights(parts, _layers, _scales, num_noise_tokens=num_noise_tokens, decoder_name=name_in_decoder)
