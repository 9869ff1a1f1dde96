"""The [model] table of encoder-decoders, and what each kind means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import OneOf, Table
from weft.errors import unknown_option
from weft.models.tables import Cap, Count, EmbeddedTable, Size, StackTable, check_cap
from weft.nn.mixers import attending, option_names, recurrent
from weft.nn.names import SCORES

BRIDGES = ("copy", "project")
SIDES = ("encoder", "decoder")
WITH_MIXER = ("mixer", "positions", "activation")  # what a preset says for its own mixer alone, beside the mixer's own options


class EncoderTable(EmbeddedTable):
    """The stack that reads the source."""

    two_way: bool = True
    reverse: bool = False  # reads the source from its end (Sutskever et al. 2014)
    embedding_norm: bool = False  # embeddings are normalised before the first layer, as in BERT

    @model_validator(mode="after")
    def one_way(self) -> Self:
        if self.reverse and self.two_way:
            raise ValueError("reverse=true turns round a source that two_way=true reads from both ends; set two_way=false")
        return self


class DecoderTable(EmbeddedTable):
    """The stack that writes the target."""

    # attention only: of the attention to the source, of the same size as those of the layer; as many as `heads`, unless given
    cross_heads: Annotated[Count, Field(ge=1)] | list[Annotated[Count, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def causal(self) -> Self:
        if self.two_way:
            raise ValueError("two_way=true lets a position see the tokens it must predict; a decoder reads one way")
        if not (self.traits.state or self.traits.attends):
            known = f"{', '.join(recurrent())} or {', '.join(attending())}"
            raise ValueError(f"mixer={self.mixer!r} has no state to start from a source; use {known}")
        if self.cross_heads is not None and not self.traits.attends:
            raise ValueError(f"cross_heads={self.cross_heads}, but mixer={self.mixer!r} has none")
        if isinstance(self.cross_heads, list) and len(self.cross_heads) != self.layers:
            raise ValueError(
                f"cross_heads has {len(self.cross_heads)} numbers for layers={self.layers}; give one number, or one a layer"
            )
        return self

    def cross_heads_of(self, layer: int) -> tuple[int, int]:
        """How many heads look at the source in a layer of a filled table, and how wide each is."""
        heads, size = self.heads_of(layer)
        given = self.cross_heads
        return given[layer] if isinstance(given, list) else given or heads, size


class Seq2SeqTable(Table):
    """An encoder, a decoder, and what passes between them."""

    encoder: EncoderTable = Field(default_factory=lambda: EncoderTable.model_validate({}))
    decoder: DecoderTable = Field(default_factory=lambda: DecoderTable.model_validate({}))
    attention: Annotated[str, OneOf(("none", *SCORES))] = "none"
    attention_size: Size | None = None  # additive only: how long w in w . tanh(Uq + Wk) is; decoder.width, unless given
    place: Literal["before", "after"] | None = None  # of attention around a recurrent step
    feeding: bool | None = None  # what was read out stands beside the next step's input; recurrent, after the step
    bridge: Annotated[str, OneOf(BRIDGES)] | None = None  # how a recurrent decoder starts
    every_step: bool | None = None  # the summary stands beside every input; recurrent, without attention
    copying: bool = False  # a token may be copied from the source; one tokenizer for both sides
    shared: bool = False  # one embedding for both sides; one tokenizer for both sides
    tied: bool = False  # one matrix for the target's embedding and the output
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)  # as each side's `dropout`, unless given
    cap: Cap = "none"  # scores stay within +-cap, smoothly

    @property
    def width(self) -> int:
        """Of its encoder, as that of any other model is of its one stack."""
        return self.encoder.width

    @property
    def dropout(self) -> float:
        """Of its encoder."""
        return self.encoder.dropout

    @model_validator(mode="after")
    def fits(self) -> Self:
        grows = self.decoder.traits.attends
        check_cap(self.cap)
        self._options_apply()
        if grows and self.attention not in ("none", "scaled-dot"):
            raise ValueError(
                f"attention={self.attention!r}, but decoder.mixer={self.decoder.mixer!r} takes scaled-dot, or none"
            )
        if self.attention in ("dot", "scaled-dot") and not grows and self.encoder.width != self.decoder.width:
            raise ValueError(
                f"attention={self.attention!r} multiplies states of encoder.width={self.encoder.width} and decoder.width="
                f"{self.decoder.width}; make them equal, or use 'multiplicative'"
            )
        if self.feeding and self.place == "before":
            raise ValueError("feeding=true feeds what is read out after the step; set feeding=false, or place='after'")
        if self.bridge == "copy" and not self.copies():
            raise ValueError(
                f"bridge='copy' needs two stacks of one mixer, width and number of layers, not {_size(self.encoder)} and "
                f"{_size(self.decoder)}; use 'project'"
            )
        if self.shared and self.encoder.read() != self.decoder.read():
            raise ValueError(
                f"shared=true is one embedding for vectors of {self.encoder.read()} in the encoder and {self.decoder.read()} "
                f"in the decoder; set embedding, or make the widths equal"
            )
        if self.tied and self.decoder.read() != self.decoder.width:
            raise ValueError(
                f"tied=true makes decoder.embedding={self.decoder.read()} the output of decoder.width={self.decoder.width}; "
                f"make them equal"
            )
        return self

    def _options_apply(self) -> None:
        """Refuse options that would do nothing."""
        grows, attends = self.decoder.traits.attends, self.attention != "none"
        for option in ("place", "feeding", "bridge", "every_step"):
            if getattr(self, option) and grows:
                raise ValueError(
                    f"{option}={_written(getattr(self, option))} is for recurrent decoders, but decoder.mixer="
                    f"{self.decoder.mixer!r}, whose state grows; drop it"
                )
        for option in ("place", "feeding"):
            if getattr(self, option) and not attends:
                raise ValueError(f"{option}={_written(getattr(self, option))}, but attention='none' has none")
        if self.attention_size is not None and self.attention != "additive":
            raise ValueError(f"attention_size={self.attention_size}, but attention={self.attention!r} has none")
        if self.every_step and attends:
            raise ValueError(f"every_step=true is for decoders without attention, but attention={self.attention!r}; drop it")

    def copies(self) -> bool:
        """Can the decoder start where the encoder stopped, layer by layer?"""
        return self.encoder.traits.state > 0 and _size(self.encoder) == _size(self.decoder)

    def filled(self) -> Self:
        """The same table with every option that applies written out."""
        steps = self.decoder.traits.state > 0  # one position at a time
        values: dict[str, Any] = {"encoder": self.encoder.filled(), "decoder": self.decoder.filled()}
        if steps:
            values["bridge"] = self.bridge or ("copy" if self.copies() else "project")
        if steps and self.attention != "none":
            place = self.place or "after"
            values |= {"place": place, "feeding": bool(self.feeding)}
        if self.attention == "additive":
            values["attention_size"] = self.attention_size or self.decoder.width
        if steps and self.attention == "none":
            values["every_step"] = bool(self.every_step)
        return self.model_copy(update=values)


def _written(value: object) -> str:
    """A value as a run file has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _size(table: StackTable) -> str:
    return f"{table.mixer} {table.layers} x {table.width}"


def spread(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of stacks that stand at [model] moved into both sides; what a side says itself wins."""
    known = (*Seq2SeqTable.model_fields, *EmbeddedTable.model_fields)
    for key in values:
        if key not in known:
            raise unknown_option("model", key, known)
    common = {key: value for key, value in values.items() if key in EmbeddedTable.model_fields}
    others = {key: value for key, value in values.items() if key not in common}
    for side in SIDES:
        own = others.get(side, {})
        if isinstance(own, Mapping):  # what is no table is refused where tables are read
            others[side] = {**common, **own}
    return others


def merge(preset: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run file over those of a preset, side by side. Where a side gets another mixer, what the preset says of
    its own mixer alone is dropped: an LSTM under a Transformer's decoder needs no heads."""
    below, above, of_mixer = spread(preset), spread(options), {*WITH_MIXER, *option_names()}
    merged = {**below, **above}
    for side in SIDES:
        own, old = above.get(side), below[side]
        if isinstance(own, Mapping):
            changed = own.get("mixer", old.get("mixer")) != old.get("mixer")
            merged[side] = {**({key: old[key] for key in old if key not in of_mixer} if changed else old), **own}
    return merged


ONE_WAY: Mapping[str, Any] = {"two_way": False}
SUTSKEVER: Mapping[str, Any] = {"mixer": "lstm", "layers": 4, "encoder": {**ONE_WAY, "reverse": True}}
CHO: Mapping[str, Any] = {
    "mixer": "gru-before", "layers": 1, "encoder": ONE_WAY, "bridge": "project", "every_step": True,
}  # fmt: skip
BAHDANAU: Mapping[str, Any] = {
    "mixer": "gru-before", "layers": 1, "attention": "additive", "place": "before", "bridge": "project",
}  # fmt: skip
LUONG: Mapping[str, Any] = {
    "mixer": "lstm", "layers": 2, "encoder": ONE_WAY, "attention": "multiplicative", "feeding": True, "dropout": 0.2,
}  # fmt: skip
TRANSFORMER: Mapping[str, Any] = {
    "mixer": "attention", "positions": "sinusoidal", "connection": "residual", "norm": "layer", "activation": "relu",
    "layers": 3, "dropout": 0.1, "attention_dropout": 0.0, "attention": "scaled-dot",
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {"layers": 1, "dropout": 0.3, "attention": "multiplicative"}
SEQ2SEQ: Mapping[str, Any] = {**RECURRENT, "mixer": "lstm", "width": 512, "dropout": 0.4, "feeding": True, "bridge": "project"}
