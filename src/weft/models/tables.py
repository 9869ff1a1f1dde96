"""The [model] table of networks, and what each kind means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import OneOf, Table
from weft.nn.mixers import MIXERS, Mixer, option_names
from weft.nn.names import ACTIVATIONS, NONLINEARITIES

ADDED = ("none", "sinusoidal", "learned")  # positions that any stack can read
INSIDE = ("relative", "alibi", "rotary")  # positions inside attention
CONNECTIONS = ("plain", "residual", "post-norm", "highway", "dense")
NORMS = ("none", "layer", "rms")
Count = Annotated[int, Field(le=2**20)]  # of heads or hidden units: no size computed from it passes what 64 bits hold
Size = Annotated[int, Field(ge=1, le=65536)]


Cap = float | Literal["none"]


def check_cap(cap: Cap) -> None:
    if cap != "none" and cap <= 0:
        raise ValueError(f"cap={cap} must be positive, or 'none'")


class StackTable(Table):
    """A stack of layers of one mixer."""

    mixer: Annotated[str, OneOf(MIXERS)] = "lstm"
    layers: int = Field(2, ge=1, le=512)
    width: int = Field(256, ge=1, le=65536)
    context: int | None = Field(None, ge=1, le=4096)  # window only: how many tokens a prediction sees
    nonlinearity: Annotated[str, OneOf(NONLINEARITIES)] | None = None  # rnn and window only: f in h = f(W h + U x + b)
    two_way: bool = False
    heads: Count | list[Count] | None = None  # attention only: one number, or one a layer, where 0 is a layer that has lost all
    head_size: Size | list[Size] | None = None  # attention only: one number, or one a layer
    qk_norm: bool | None = None  # attention only: queries and keys are normalised
    positions: Annotated[str, OneOf((*ADDED, *INSIDE))] = "none"
    slopes: list[list[float]] | None = None  # alibi only: of each head of each layer; as in the paper, unless given
    feed_forward: Annotated[Count, Field(ge=1)] | Literal["none"] | None = None  # hidden units, after each mixer
    activation: Annotated[str, OneOf(ACTIVATIONS)] | None = None
    connection: Annotated[str, OneOf(CONNECTIONS)] = "plain"
    norm: Annotated[str, OneOf(NORMS)] = "none"
    norm_eps: float | None = Field(None, gt=0.0, lt=1.0)  # what a norm adds to the variance: 1e-5 in layer norms, unless given
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    attention_dropout: float | None = Field(None, ge=0.0, lt=1.0)  # attention only: of its weights; as `dropout`, unless given

    @property
    def traits(self) -> Mixer:
        """How the mixer differs from others."""
        return MIXERS[self.mixer]

    def mixer_options(self) -> dict[str, Any]:
        """The options that are the mixer's own, with its defaults where they are not given."""
        given = {option: value for option in self.traits.options if (value := getattr(self, option)) is not None}
        return {**self.traits.options, **given}

    @model_validator(mode="after")
    def fits(self) -> Self:
        traits = self.traits
        for option in option_names():
            if option not in traits.options and getattr(self, option) is not None:
                raise ValueError(f"{option}={getattr(self, option)!r}, but mixer={self.mixer!r} has none")
        if self.positions in INSIDE and not traits.attends:
            raise ValueError(
                f"positions={self.positions!r} stand inside attention; mixer={self.mixer!r} takes {', '.join(ADDED)}"
            )
        if self.two_way and traits.attends and traits.two_way is None:
            raise ValueError(f"two_way=true, but mixer={self.mixer!r} reads one way; set two_way=false")
        if self.connection == "post-norm" and self.norm == "none":
            raise ValueError("connection='post-norm' needs norm='layer' or 'rms'")
        if self.norm_eps is not None and self.norm == "none":
            raise ValueError(f"norm_eps={self.norm_eps}, but norm='none' has none")
        if self.two_way and traits.two_way is None and self.width % 2:
            raise ValueError(
                f"two_way gives each side half the width: mixer={self.mixer!r}, width={self.width} can't be halved so"
            )
        alone = self.feed_forward == "none" or (self.feed_forward is None and not traits.attends)
        if alone and self.activation is not None:
            raise ValueError(f"activation={self.activation!r}, but feed_forward='none' has none")
        return self._heads_fit() if traits.attends else self

    def _heads_fit(self) -> Self:
        given = default_heads(self.width) if self.heads is None else self.heads
        for option, values in (("heads", given), ("head_size", self.head_size)):
            if isinstance(values, list) and len(values) != self.layers:
                raise ValueError(
                    f"{option} has {len(values)} numbers for layers={self.layers}; give one number, or one a layer"
                )
        heads = given if isinstance(given, list) else [given] * self.layers
        for number, size in zip(heads, _each(self.head_size, self.layers), strict=True):
            if number < 0 or (number == 0 and not isinstance(given, list)):
                raise ValueError(f"heads={number} must be at least 1")
            if number == 0 and size is None:
                raise ValueError("heads=0 in a layer leaves open how wide a head is; give head_size")
            if size is None and self.width % number:
                raise ValueError(f"width={self.width} is not a multiple of heads={number}; change one, or give head_size")
            wide = size or self.width // number
            if self.positions == "rotary" and wide % 2:
                raise ValueError(f"positions='rotary' turns pairs: the size of a head, {wide}, must be even")
        return self._slopes_fit(heads)

    def _slopes_fit(self, heads: list[int]) -> Self:
        if self.slopes is None:
            return self
        if self.positions != "alibi":
            raise ValueError(f"slopes are those of positions='alibi', but positions={self.positions!r}; drop them")
        if [len(own) for own in self.slopes] != heads:
            raise ValueError(f"slopes has {[len(own) for own in self.slopes]} numbers for heads={heads}; give one a head")
        return self

    def heads_of(self, layer: int) -> tuple[int, int]:
        """How many heads a layer of a filled table has, and how wide each is."""
        heads, size = _each(self.heads, self.layers)[layer] or 0, _each(self.head_size, self.layers)[layer]
        return heads, size or self.width // heads

    def filled(self) -> Self:
        """The same table with every option that applies written out."""
        hidden = self.feed_forward or (4 * self.width if self.traits.attends else "none")
        values: dict[str, Any] = {option: value for option, value in self.mixer_options().items() if value is not None}
        values["feed_forward"] = hidden
        if hidden != "none":
            values["activation"] = self.activation or "gelu"
        if self.traits.attends:
            dropout = self.dropout if self.attention_dropout is None else self.attention_dropout
            values |= {"heads": self.heads or default_heads(self.width), "attention_dropout": dropout}
        return self.model_copy(update=values)


def _each(value: int | list[int] | None, layers: int) -> list[int | None]:
    """One value a layer, of an option that may say one for all."""
    return list[int | None](value) if isinstance(value, list) else [value] * layers


def default_heads(width: int) -> int:
    """Heads of about 32 to 64, and as many as divide the width."""
    return next(heads for heads in range(max(1, width // 32), 0, -1) if width % heads == 0)


class EmbeddedTable(StackTable):
    """An embedding, and a stack that reads it."""

    embedding: int | None = Field(None, ge=1, le=65536)  # not for attention: of a token's vector; `width`, unless given

    @model_validator(mode="after")
    def reads(self) -> Self:
        if self.traits.attends and self.read() != self.width:
            raise ValueError(
                f"embedding={self.embedding}, but mixer={self.mixer!r} adds to what it reads, of width={self.width}; drop it"
            )
        return self

    def read(self) -> int:
        """How long a token's vector is."""
        return self.embedding or self.width


class LanguageTable(StackTable):
    """A stack between an embedding and next-token probabilities."""

    tied: bool = False  # one matrix for the embedding and the output
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)  # as `dropout`, unless given
    cap: Cap = "none"  # scores stay within +-cap, smoothly
    zero_init: bool = False  # what writes to the residual stream, and the output, start at zero

    @model_validator(mode="after")
    def causal(self) -> Self:
        if self.two_way:
            raise ValueError("two_way=true lets a position see the tokens it must predict; a language model reads one way")
        if self.tied and self.zero_init:
            raise ValueError("tied=true makes the embedding the output, which zero_init=true sets to zero; add zero_init=false")
        check_cap(self.cap)
        return self

    def filled(self) -> Self:
        dropout = self.dropout if self.embedding_dropout is None else self.embedding_dropout
        return super().filled().model_copy(update={"embedding_dropout": dropout})


TEXTBOOK: Mapping[str, Any] = {
    "mixer": "attention",
    "positions": "learned",
    "connection": "residual",
    "norm": "layer",
    "layers": 4,
}
GPT: Mapping[str, Any] = {
    "mixer": "attention",
    "positions": "rotary",
    "connection": "residual",
    "norm": "rms",
    "layers": 4,
    "qk_norm": True,
    "activation": "squared-relu",
    "cap": 15.0,
    "zero_init": True,
}
