"""The [model] table of encoder-decoders, and their presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import Choice, Config, invalid
from weft.errors import unknown_option
from weft.models.config import Count, EmbeddedStackConfig, Size, StackConfig
from weft.nn.choices import ATTENTION_SCORES
from weft.nn.mixers import attention_mixers, option_names, recurrent_mixers

BRIDGES = ("copy", "project")
SIDES = ("encoder", "decoder")
# options of a preset that suit only its layer type, in addition to the options that the layer type defines
LAYER_TYPE_OPTIONS = ("layer_type", "position_encoding", "activation")


class EncoderConfig(EmbeddedStackConfig):
    """The stack that reads the source."""

    bidirectional: bool = True
    reverse_source: bool = False
    """Read the source from its end (Sutskever)."""

    @model_validator(mode="after")
    def check_direction(self) -> Self:
        if self.reverse_source and self.bidirectional:
            raise invalid("reverse_source", "has no effect if bidirectional is true", "set bidirectional = false")
        return self


class DecoderConfig(EmbeddedStackConfig):
    """The stack that writes the target."""

    # cross-attention heads have the same size as the self-attention heads of the layer
    num_cross_heads: Annotated[Count, Field(ge=1)] | list[Annotated[Count, Field(ge=0)]] | None = None
    """attention only: number of cross-attention heads. Default: num_heads."""

    @model_validator(mode="after")
    def check_decoder(self) -> Self:
        if self.bidirectional:
            raise invalid("bidirectional", "not possible for a decoder, which would see the tokens it predicts")
        if not (self.traits.num_state_vectors or self.traits.attends):
            allowed = f"{', '.join(recurrent_mixers())} or {', '.join(attention_mixers())}"
            raise invalid("layer_type", f"{self.layer_type!r} is not possible for a decoder", f"use {allowed}")
        if self.conv_kernel is not None:
            raise invalid("conv_kernel", "not possible for a decoder", "set it in [model.encoder] only")
        if self.num_cross_heads is not None and not self.traits.attends:
            raise invalid("num_cross_heads", f"not used with layer_type {self.layer_type!r}", "remove it")
        if isinstance(self.num_cross_heads, list) and len(self.num_cross_heads) != self.num_layers:
            problem = f"{len(self.num_cross_heads)} values for {self.num_layers} layers"
            raise invalid("num_cross_heads", problem, "set one number, or one per layer")
        return self

    def cross_heads_in_layer(self, layer: int) -> tuple[int, int]:
        """The number of cross-attention heads in a layer and the size of each. Requires a resolved table."""
        num_heads, head_dim = self.heads_in_layer(layer)
        num_cross_heads = self.num_cross_heads
        return num_cross_heads[layer] if isinstance(num_cross_heads, list) else num_cross_heads or num_heads, head_dim


class Seq2SeqConfig(Config):
    """An encoder, a decoder, and the connection between them."""

    encoder: EncoderConfig = Field(default_factory=lambda: EncoderConfig.model_validate({}))
    """Options of the encoder alone."""
    decoder: DecoderConfig = Field(default_factory=lambda: DecoderConfig.model_validate({}))
    """Options of the decoder alone."""
    attention: Annotated[str, Choice(("none", *ATTENTION_SCORES))] = "none"
    """How the decoder scores source positions."""
    attention_dim: Size | None = None
    """additive only: size of the hidden layer of the attention score. Default: hidden_size of the decoder."""
    attention_placement: Literal["before", "after"] | None = None
    """Attend before the recurrent step (Bahdanau) or after it (Luong)."""
    attention_gate: bool | None = None
    """attention_placement "before" only: multiply the output of attention by a gate, a function of the decoder's state (Xu)."""
    input_feeding: bool | None = None
    """Feed the attention output into the next step (Luong)."""
    bridge: Annotated[str, Choice(BRIDGES)] | None = None
    """Initialize the decoder with a copy of the encoder's final state, or with a projection of its summary."""
    feed_context: bool | None = None
    """Feed the source summary into the decoder at every step (Cho)."""
    copy_mechanism: bool = False
    """Let the decoder copy source tokens (pointer-generator). Requires one shared tokenizer."""
    share_embeddings: bool = False
    """Share the embeddings of source and target. Requires one shared tokenizer."""
    tie_embeddings: bool = False
    """Share the weights of the embedding and the output layer."""
    scale_embeddings: bool | None = None
    """Multiply embeddings by the square root of their size. Default: with attention, and if they are the output weights."""
    head_bias: bool = True
    """Add a bias to the logits."""
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)
    """Dropout on the embeddings. Default: dropout."""
    logit_softcap: float = Field(0.0, ge=0.0)
    """Soft cap on the logits: cap * tanh(logit / cap); 0 for none."""

    @property
    def hidden_size(self) -> int:
        """The hidden size of the encoder; configurations with one stack have the same attribute."""
        return self.encoder.hidden_size

    @property
    def dropout(self) -> float:
        """The dropout of the encoder."""
        return self.encoder.dropout

    @model_validator(mode="after")
    def check_sides(self) -> Self:
        self._check_applicable()
        encoder, decoder = self.encoder, self.decoder
        if decoder.traits.attends and self.attention not in ("none", "scaled-dot"):
            fix = "use 'scaled-dot' or 'none'"
            raise invalid("attention", f"{self.attention!r} is not possible with layer_type {decoder.layer_type!r}", fix)
        sizes_differ = encoder.hidden_size != decoder.hidden_size
        if self.attention in ("dot", "scaled-dot") and not decoder.traits.attends and sizes_differ:
            problem = f"{self.attention!r} requires equal hidden sizes, got {encoder.hidden_size} and {decoder.hidden_size}"
            raise invalid("attention", problem, "make them equal or use 'multiplicative'")
        if self.input_feeding and self.attention_placement == "before":
            fix = 'set input_feeding = false or attention_placement = "after"'
            raise invalid("input_feeding", "not possible with attention_placement 'before'", fix)
        if decoder.weight_dropout and (self.input_feeding or self.attention_placement == "before"):
            # such a decoder takes one step at a time, and would draw a mask at each step
            option = "input_feeding" if self.input_feeding else "attention_placement 'before'"
            raise invalid("decoder.weight_dropout", f"not possible with {option}", "set it in [model.encoder] only")
        if self.bridge == "copy" and not self.can_copy_state():
            problem = f"'copy' requires encoder and decoder to match ({_shape(encoder)}, {_shape(decoder)})"
            raise invalid("bridge", problem, "use 'project'")
        if self.share_embeddings and encoder.input_dim() != decoder.input_dim():
            problem = f"requires embeddings of one size, got {encoder.input_dim()} and {decoder.input_dim()}"
            raise invalid("share_embeddings", problem, "set embedding_dim or make the hidden sizes equal")
        if self.tie_embeddings and decoder.input_dim() != decoder.hidden_size:
            problem = f"requires embedding_dim ({decoder.input_dim()}) of the decoder to equal its hidden_size"
            raise invalid("tie_embeddings", f"{problem} ({decoder.hidden_size})", "make them equal")
        return self

    def _check_applicable(self) -> None:
        """Reject options that would have no effect."""
        for option in ("attention_placement", "input_feeding", "bridge", "feed_context"):
            if getattr(self, option) and self.decoder.traits.attends:
                raise invalid(option, f"not used with layer_type {self.decoder.layer_type!r}", "remove it")
        for option in ("attention_placement", "input_feeding"):
            if getattr(self, option) and self.attention == "none":
                raise invalid(option, "not used with attention 'none'", "remove it")
        if self.attention_dim is not None and self.attention != "additive":
            raise invalid("attention_dim", f"not used with attention {self.attention!r}", "remove it")
        if self.attention_gate and self.attention_placement != "before":
            raise invalid("attention_gate", "requires attention_placement 'before'", "set it to false")
        if self.feed_context and self.attention != "none":
            raise invalid("feed_context", f"not used with attention {self.attention!r}", "remove it")

    def can_copy_state(self) -> bool:
        """Whether the decoder can start from the encoder's final state, layer by layer."""
        return self.encoder.traits.num_state_vectors > 0 and _shape(self.encoder) == _shape(self.decoder)

    def with_defaults(self) -> Self:
        """The same table with a value for every option that applies."""
        is_recurrent = self.decoder.traits.num_state_vectors > 0
        values: dict[str, Any] = {"encoder": self.encoder.with_defaults(), "decoder": self.decoder.with_defaults()}
        if is_recurrent:
            values["bridge"] = self.bridge or ("copy" if self.can_copy_state() else "project")
        if is_recurrent and self.attention != "none":
            placement = self.attention_placement or "after"
            values |= {"attention_placement": placement, "input_feeding": bool(self.input_feeding)}
        if self.attention == "additive":
            values["attention_dim"] = self.attention_dim or self.decoder.hidden_size
        if is_recurrent and self.attention == "none":
            values["feed_context"] = bool(self.feed_context)
        return self.model_copy(update=values)


def _shape(config: StackConfig) -> str:
    return f"{config.layer_type} {config.num_layers}x{config.hidden_size}"


def broadcast_to_sides(values: Mapping[str, Any], config_class: type[Seq2SeqConfig] = Seq2SeqConfig) -> dict[str, Any]:
    """Copy the stack options in [model] to encoder and decoder; options set in [model.encoder] and [model.decoder] win."""
    options = (*config_class.model_fields, *EmbeddedStackConfig.model_fields)
    for key in values:
        if key not in options:
            raise unknown_option("model", key, options)
    shared = {key: value for key, value in values.items() if key in EmbeddedStackConfig.model_fields}
    result = {key: value for key, value in values.items() if key not in shared}
    for side in SIDES:
        side_values = result.get(side, {})
        if isinstance(side_values, Mapping):  # anything else is rejected when the table is parsed
            result[side] = {**shared, **side_values}
    return result


def merge(
    preset: Mapping[str, Any], options: Mapping[str, Any], config_class: type[Seq2SeqConfig] = Seq2SeqConfig
) -> dict[str, Any]:
    """Merge the options of a run file into those of a preset, separately for encoder and decoder. If the run file changes the
    layer type of a side, the preset's options for its layer type are removed: an LSTM in a Transformer needs no heads."""
    defaults, overrides = (broadcast_to_sides(values, config_class) for values in (preset, options))
    layer_type_options = {*LAYER_TYPE_OPTIONS, *option_names()}
    merged = {**defaults, **overrides}
    for side in SIDES:
        side_defaults, side_overrides = defaults[side], overrides.get(side)
        if isinstance(side_overrides, Mapping):
            layer_type = side_defaults.get("layer_type")
            if side_overrides.get("layer_type", layer_type) != layer_type:
                side_defaults = {key: value for key, value in side_defaults.items() if key not in layer_type_options}
            merged[side] = {**side_defaults, **side_overrides}
    return merged


UNIDIRECTIONAL: Mapping[str, Any] = {"bidirectional": False}
SUTSKEVER: Mapping[str, Any] = {"layer_type": "lstm", "num_layers": 4, "encoder": {**UNIDIRECTIONAL, "reverse_source": True}}
CHO: Mapping[str, Any] = {
    "layer_type": "gru-reset-before", "num_layers": 1, "encoder": UNIDIRECTIONAL, "bridge": "project", "feed_context": True,
}  # fmt: skip
BAHDANAU: Mapping[str, Any] = {
    "layer_type": "gru-reset-before", "num_layers": 1, "attention": "additive", "attention_placement": "before",
    "bridge": "project",
}  # fmt: skip
LUONG: Mapping[str, Any] = {
    "layer_type": "lstm", "num_layers": 2, "encoder": UNIDIRECTIONAL, "attention": "multiplicative",
    "input_feeding": True, "dropout": 0.2,
}  # fmt: skip
TRANSFORMER: Mapping[str, Any] = {
    "layer_type": "attention", "position_encoding": "sinusoidal", "skip_connection": "residual", "norm": "layernorm",
    "activation": "relu",
    "num_layers": 3, "dropout": 0.1, "attention_dropout": 0.0, "attention": "scaled-dot",
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {"num_layers": 1, "dropout": 0.3, "attention": "multiplicative"}
LSTM_INPUT_FEEDING: Mapping[str, Any] = {
    **RECURRENT,
    "layer_type": "lstm",
    "hidden_size": 512,
    "dropout": 0.4,
    "input_feeding": True,
    "bridge": "project",
}
