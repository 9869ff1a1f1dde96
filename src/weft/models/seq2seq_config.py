"""The [model] table of encoder-decoders, and what each kind means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import Choice, Config
from weft.errors import unknown_option
from weft.models.config import Count, EmbeddedStackConfig, Size, SoftCap, StackConfig, check_softcap
from weft.nn.choices import SCORES
from weft.nn.mixers import attending, option_names, recurrent

BRIDGES = ("copy", "project")
SIDES = ("encoder", "decoder")
WITH_MIXER = (
    "layer_type",
    "position_encoding",
    "activation",
)  # what a preset says for its own mixer alone, beside the mixer's own options


class EncoderConfig(EmbeddedStackConfig):
    """The stack that reads the source."""

    bidirectional: bool = True
    reverse_source: bool = False  # reads the source from its end (Sutskever et al. 2014)
    embedding_norm: bool = False  # embeddings are normalised before the first layer, as in BERT

    @model_validator(mode="after")
    def check_reverse(self) -> Self:
        if self.reverse_source and self.bidirectional:
            raise ValueError("reverse=true turns round a source that two_way=true reads from both ends; set two_way=false")
        return self


class DecoderConfig(EmbeddedStackConfig):
    """The stack that writes the target."""

    # attention only: of the attention to the source, of the same size as those of the layer; as many as `heads`, unless given
    num_cross_heads: Annotated[Count, Field(ge=1)] | list[Annotated[Count, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def check_causal(self) -> Self:
        if self.bidirectional:
            raise ValueError("two_way=true lets a position see the tokens it must predict; a decoder reads one way")
        if not (self.traits.state or self.traits.attends):
            known = f"{', '.join(recurrent())} or {', '.join(attending())}"
            raise ValueError(f"mixer={self.layer_type!r} has no state to start from a source; use {known}")
        if self.num_cross_heads is not None and not self.traits.attends:
            raise ValueError(f"cross_heads={self.num_cross_heads}, but mixer={self.layer_type!r} has none")
        if isinstance(self.num_cross_heads, list) and len(self.num_cross_heads) != self.num_layers:
            raise ValueError(
                f"cross_heads has {len(self.num_cross_heads)} numbers for layers={self.num_layers}; give one number, or one a layer"
            )
        return self

    def cross_heads_in_layer(self, layer: int) -> tuple[int, int]:
        """How many heads look at the source in a layer of a filled table, and how wide each is."""
        heads, size = self.heads_in_layer(layer)
        given = self.num_cross_heads
        return given[layer] if isinstance(given, list) else given or heads, size


class Seq2SeqConfig(Config):
    """An encoder, a decoder, and what passes between them."""

    encoder: EncoderConfig = Field(default_factory=lambda: EncoderConfig.model_validate({}))
    decoder: DecoderConfig = Field(default_factory=lambda: DecoderConfig.model_validate({}))
    attention: Annotated[str, Choice(("none", *SCORES))] = "none"
    attention_dim: Size | None = None  # additive only: how long w in w . tanh(Uq + Wk) is; decoder.width, unless given
    attention_placement: Literal["before", "after"] | None = None  # of attention around a recurrent step
    input_feeding: bool | None = None  # what was read out stands beside the next step's input; recurrent, after the step
    bridge: Annotated[str, Choice(BRIDGES)] | None = None  # how a recurrent decoder starts
    feed_context: bool | None = None  # the summary stands beside every input; recurrent, without attention
    copy_mechanism: bool = False  # a token may be copied from the source; one tokenizer for both sides
    share_embeddings: bool = False  # one embedding for both sides; one tokenizer for both sides
    tie_embeddings: bool = False  # one matrix for the target's embedding and the output
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)  # as each side's `dropout`, unless given
    logit_softcap: SoftCap = "none"  # scores stay within +-cap, smoothly

    @property
    def hidden_size(self) -> int:
        """Of its encoder, as that of any other model is of its one stack."""
        return self.encoder.hidden_size

    @property
    def dropout(self) -> float:
        """Of its encoder."""
        return self.encoder.dropout

    @model_validator(mode="after")
    def check_options(self) -> Self:
        grows = self.decoder.traits.attends
        check_softcap(self.logit_softcap)
        self._options_apply()
        if grows and self.attention not in ("none", "scaled-dot"):
            raise ValueError(
                f"attention={self.attention!r}, but decoder.mixer={self.decoder.layer_type!r} takes scaled-dot, or none"
            )
        if self.attention in ("dot", "scaled-dot") and not grows and self.encoder.hidden_size != self.decoder.hidden_size:
            raise ValueError(
                f"attention={self.attention!r} multiplies states of encoder.width={self.encoder.hidden_size} and decoder.width="
                f"{self.decoder.hidden_size}; make them equal, or use 'multiplicative'"
            )
        if self.input_feeding and self.attention_placement == "before":
            raise ValueError("feeding=true feeds what is read out after the step; set feeding=false, or place='after'")
        if self.bridge == "copy" and not self.can_copy_state():
            raise ValueError(
                f"bridge='copy' needs two stacks of one mixer, width and number of layers, not {_size(self.encoder)} and "
                f"{_size(self.decoder)}; use 'project'"
            )
        if self.share_embeddings and self.encoder.input_dim() != self.decoder.input_dim():
            raise ValueError(
                f"shared=true is one embedding for vectors of {self.encoder.input_dim()} in the encoder and {self.decoder.input_dim()} "
                f"in the decoder; set embedding, or make the widths equal"
            )
        if self.tie_embeddings and self.decoder.input_dim() != self.decoder.hidden_size:
            raise ValueError(
                f"tied=true makes decoder.embedding={self.decoder.input_dim()} the output of decoder.width={self.decoder.hidden_size}; "
                f"make them equal"
            )
        return self

    def _options_apply(self) -> None:
        """Refuse options that would do nothing."""
        grows, attends = self.decoder.traits.attends, self.attention != "none"
        for option in ("attention_placement", "input_feeding", "bridge", "feed_context"):
            if getattr(self, option) and grows:
                raise ValueError(
                    f"{option}={_written(getattr(self, option))} is for recurrent decoders, but decoder.mixer="
                    f"{self.decoder.layer_type!r}, whose state grows; drop it"
                )
        for option in ("attention_placement", "input_feeding"):
            if getattr(self, option) and not attends:
                raise ValueError(f"{option}={_written(getattr(self, option))}, but attention='none' has none")
        if self.attention_dim is not None and self.attention != "additive":
            raise ValueError(f"attention_size={self.attention_dim}, but attention={self.attention!r} has none")
        if self.feed_context and attends:
            raise ValueError(f"every_step=true is for decoders without attention, but attention={self.attention!r}; drop it")

    def can_copy_state(self) -> bool:
        """Can the decoder start where the encoder stopped, layer by layer?"""
        return self.encoder.traits.state > 0 and _size(self.encoder) == _size(self.decoder)

    def with_defaults(self) -> Self:
        """The same table with every option that applies written out."""
        steps = self.decoder.traits.state > 0  # one position at a time
        values: dict[str, Any] = {"encoder": self.encoder.with_defaults(), "decoder": self.decoder.with_defaults()}
        if steps:
            values["bridge"] = self.bridge or ("copy" if self.can_copy_state() else "project")
        if steps and self.attention != "none":
            place = self.attention_placement or "after"
            values |= {"attention_placement": place, "input_feeding": bool(self.input_feeding)}
        if self.attention == "additive":
            values["attention_dim"] = self.attention_dim or self.decoder.hidden_size
        if steps and self.attention == "none":
            values["feed_context"] = bool(self.feed_context)
        return self.model_copy(update=values)


def _written(value: object) -> str:
    """A value as a run file has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _size(config: StackConfig) -> str:
    return f"{config.layer_type} {config.num_layers} x {config.hidden_size}"


def broadcast_to_sides(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of stacks that stand at [model] moved into both sides; what a side says itself wins."""
    known = (*Seq2SeqConfig.model_fields, *EmbeddedStackConfig.model_fields)
    for key in values:
        if key not in known:
            raise unknown_option("model", key, known)
    common = {key: value for key, value in values.items() if key in EmbeddedStackConfig.model_fields}
    others = {key: value for key, value in values.items() if key not in common}
    for side in SIDES:
        own = others.get(side, {})
        if isinstance(own, Mapping):  # what is no table is refused where tables are read
            others[side] = {**common, **own}
    return others


def merge(preset: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run file over those of a preset, side by side. Where a side gets another mixer, what the preset says of
    its own mixer alone is dropped: an LSTM under a Transformer's decoder needs no heads."""
    below, above, of_mixer = broadcast_to_sides(preset), broadcast_to_sides(options), {*WITH_MIXER, *option_names()}
    merged = {**below, **above}
    for side in SIDES:
        own, old = above.get(side), below[side]
        if isinstance(own, Mapping):
            changed = own.get("layer_type", old.get("layer_type")) != old.get("layer_type")
            merged[side] = {**({key: old[key] for key in old if key not in of_mixer} if changed else old), **own}
    return merged


ONE_WAY: Mapping[str, Any] = {"bidirectional": False}
SUTSKEVER: Mapping[str, Any] = {"layer_type": "lstm", "num_layers": 4, "encoder": {**ONE_WAY, "reverse_source": True}}
CHO: Mapping[str, Any] = {
    "layer_type": "gru-reset-before", "num_layers": 1, "encoder": ONE_WAY, "bridge": "project", "feed_context": True,
}  # fmt: skip
BAHDANAU: Mapping[str, Any] = {
    "layer_type": "gru-reset-before", "num_layers": 1, "attention": "additive", "attention_placement": "before", "bridge": "project",
}  # fmt: skip
LUONG: Mapping[str, Any] = {
    "layer_type": "lstm", "num_layers": 2, "encoder": ONE_WAY, "attention": "multiplicative", "input_feeding": True, "dropout": 0.2,
}  # fmt: skip
TRANSFORMER: Mapping[str, Any] = {
    "layer_type": "attention", "position_encoding": "sinusoidal", "skip_connection": "residual", "norm": "layernorm", "activation": "relu",
    "num_layers": 3, "dropout": 0.1, "attention_dropout": 0.0, "attention": "scaled-dot",
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {"num_layers": 1, "dropout": 0.3, "attention": "multiplicative"}
SEQ2SEQ: Mapping[str, Any] = {
    **RECURRENT,
    "layer_type": "lstm",
    "hidden_size": 512,
    "dropout": 0.4,
    "input_feeding": True,
    "bridge": "project",
}
