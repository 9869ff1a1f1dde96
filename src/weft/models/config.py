"""The [model] table of networks, and what each kind means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import Choice, Config
from weft.nn.choices import ACTIVATIONS, NONLINEARITIES
from weft.nn.mixers import MIXERS, Mixer, option_names

INPUT_ENCODINGS = ("none", "sinusoidal", "learned")  # positions that any stack can read
ATTENTION_ENCODINGS = ("relative", "alibi", "rotary")  # positions inside attention
CONNECTIONS = ("none", "residual", "post-norm", "highway", "dense")
NORMS = ("none", "layernorm", "rmsnorm")
Count = Annotated[int, Field(le=2**20)]  # of heads or hidden units: no size computed from it passes what 64 bits hold
Size = Annotated[int, Field(ge=1, le=65536)]


SoftCap = float | Literal["none"]


def check_softcap(logit_softcap: SoftCap) -> None:
    if logit_softcap != "none" and logit_softcap <= 0:
        raise ValueError(f"cap={logit_softcap} must be positive, or 'none'")


class StackConfig(Config):
    """A stack of layers of one mixer."""

    layer_type: Annotated[str, Choice(MIXERS)] = "lstm"
    num_layers: int = Field(2, ge=1, le=512)
    hidden_size: int = Field(256, ge=1, le=65536)
    kernel_size: int | None = Field(None, ge=1, le=4096)  # window only: how many tokens a prediction sees
    nonlinearity: Annotated[str, Choice(NONLINEARITIES)] | None = None  # rnn and window only: f in h = f(W h + U x + b)
    bidirectional: bool = False
    num_heads: Count | list[Count] | None = (
        None  # attention only: one number, or one a layer, where 0 is a layer that has lost all
    )
    head_dim: Size | list[Size] | None = None  # attention only: one number, or one a layer
    qk_norm: bool | None = None  # attention only: queries and keys are normalised
    position_encoding: Annotated[str, Choice((*INPUT_ENCODINGS, *ATTENTION_ENCODINGS))] = "none"
    alibi_slopes: list[list[float]] | None = None  # alibi only: of each head of each layer; as in the paper, unless given
    ffn_dim: Annotated[Count, Field(ge=1)] | Literal["none"] | None = None  # hidden units, after each mixer
    activation: Annotated[str, Choice(ACTIVATIONS)] | None = None
    skip_connection: Annotated[str, Choice(CONNECTIONS)] = "none"
    norm: Annotated[str, Choice(NORMS)] = "none"
    norm_eps: float | None = Field(None, gt=0.0, lt=1.0)  # what a norm adds to the variance: 1e-5 in layer norms, unless given
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    attention_dropout: float | None = Field(None, ge=0.0, lt=1.0)  # attention only: of its weights; as `dropout`, unless given

    @property
    def traits(self) -> Mixer:
        """How the mixer differs from others."""
        return MIXERS[self.layer_type]

    def mixer_options(self) -> dict[str, Any]:
        """The options that are the mixer's own, with its defaults where they are not given."""
        given = {option: value for option in self.traits.options if (value := getattr(self, option)) is not None}
        return {**self.traits.options, **given}

    @model_validator(mode="after")
    def check_options(self) -> Self:
        traits = self.traits
        for option in option_names():
            if option not in traits.options and getattr(self, option) is not None:
                raise ValueError(f"{option}={getattr(self, option)!r}, but mixer={self.layer_type!r} has none")
        if self.position_encoding in ATTENTION_ENCODINGS and not traits.attends:
            raise ValueError(
                f"positions={self.position_encoding!r} stand inside attention; mixer={self.layer_type!r} takes {', '.join(INPUT_ENCODINGS)}"
            )
        if self.bidirectional and traits.attends and traits.bidirectional is None:
            raise ValueError(f"two_way=true, but mixer={self.layer_type!r} reads one way; set two_way=false")
        if self.skip_connection == "post-norm" and self.norm == "none":
            raise ValueError("connection='post-norm' needs norm='layer' or 'rms'")
        if self.norm_eps is not None and self.norm == "none":
            raise ValueError(f"norm_eps={self.norm_eps}, but norm='none' has none")
        if self.bidirectional and traits.bidirectional is None and self.hidden_size % 2:
            raise ValueError(
                f"two_way gives each side half the width: mixer={self.layer_type!r}, width={self.hidden_size} can't be halved so"
            )
        alone = self.ffn_dim == "none" or (self.ffn_dim is None and not traits.attends)
        if alone and self.activation is not None:
            raise ValueError(f"activation={self.activation!r}, but feed_forward='none' has none")
        return self._check_heads() if traits.attends else self

    def _check_heads(self) -> Self:
        given = default_heads(self.hidden_size) if self.num_heads is None else self.num_heads
        for option, values in (("heads", given), ("head_dim", self.head_dim)):
            if isinstance(values, list) and len(values) != self.num_layers:
                raise ValueError(
                    f"{option} has {len(values)} numbers for layers={self.num_layers}; give one number, or one a layer"
                )
        heads = given if isinstance(given, list) else [given] * self.num_layers
        for number, size in zip(heads, _each(self.head_dim, self.num_layers), strict=True):
            if number < 0 or (number == 0 and not isinstance(given, list)):
                raise ValueError(f"heads={number} must be at least 1")
            if number == 0 and size is None:
                raise ValueError("heads=0 in a layer leaves open how wide a head is; give head_size")
            if size is None and self.hidden_size % number:
                raise ValueError(f"width={self.hidden_size} is not a multiple of heads={number}; change one, or give head_size")
            wide = size or self.hidden_size // number
            if self.position_encoding == "rotary" and wide % 2:
                raise ValueError(f"positions='rotary' turns pairs: the size of a head, {wide}, must be even")
        return self._check_slopes(heads)

    def _check_slopes(self, heads: list[int]) -> Self:
        if self.alibi_slopes is None:
            return self
        if self.position_encoding != "alibi":
            raise ValueError(f"slopes are those of positions='alibi', but positions={self.position_encoding!r}; drop them")
        if [len(own) for own in self.alibi_slopes] != heads:
            raise ValueError(f"slopes has {[len(own) for own in self.alibi_slopes]} numbers for heads={heads}; give one a head")
        return self

    def heads_in_layer(self, layer: int) -> tuple[int, int]:
        """How many heads a layer of a filled table has, and how wide each is."""
        heads, size = _each(self.num_heads, self.num_layers)[layer] or 0, _each(self.head_dim, self.num_layers)[layer]
        return heads, size or self.hidden_size // heads

    def with_defaults(self) -> Self:
        """The same table with every option that applies written out."""
        hidden = self.ffn_dim or (4 * self.hidden_size if self.traits.attends else "none")
        values: dict[str, Any] = {option: value for option, value in self.mixer_options().items() if value is not None}
        values["ffn_dim"] = hidden
        if hidden != "none":
            values["activation"] = self.activation or "gelu"
        if self.traits.attends:
            dropout = self.dropout if self.attention_dropout is None else self.attention_dropout
            values |= {"num_heads": self.num_heads or default_heads(self.hidden_size), "attention_dropout": dropout}
        return self.model_copy(update=values)


def _each(value: int | list[int] | None, layers: int) -> list[int | None]:
    """One value a layer, of an option that may say one for all."""
    return list[int | None](value) if isinstance(value, list) else [value] * layers


def default_heads(width: int) -> int:
    """Heads of about 32 to 64, and as many as divide the width."""
    return next(heads for heads in range(max(1, width // 32), 0, -1) if width % heads == 0)


class EmbeddedStackConfig(StackConfig):
    """An embedding, and a stack that reads it."""

    embedding_dim: int | None = Field(None, ge=1, le=65536)  # not for attention: of a token's vector; `width`, unless given

    @model_validator(mode="after")
    def check_embedding(self) -> Self:
        if self.traits.attends and self.input_dim() != self.hidden_size:
            raise ValueError(
                f"embedding={self.embedding_dim}, but mixer={self.layer_type!r} adds to what it reads, of width={self.hidden_size}; drop it"
            )
        return self

    def input_dim(self) -> int:
        """How long a token's vector is."""
        return self.embedding_dim or self.hidden_size


class LanguageModelConfig(StackConfig):
    """A stack between an embedding and next-token probabilities."""

    tie_embeddings: bool = False  # one matrix for the embedding and the output
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)  # as `dropout`, unless given
    logit_softcap: SoftCap = "none"  # scores stay within +-cap, smoothly
    zero_init: bool = False  # what writes to the residual stream, and the output, start at zero

    @model_validator(mode="after")
    def check_causal(self) -> Self:
        if self.bidirectional:
            raise ValueError("two_way=true lets a position see the tokens it must predict; a language model reads one way")
        if self.tie_embeddings and self.zero_init:
            raise ValueError("tied=true makes the embedding the output, which zero_init=true sets to zero; add zero_init=false")
        check_softcap(self.logit_softcap)
        return self

    def with_defaults(self) -> Self:
        dropout = self.dropout if self.embedding_dropout is None else self.embedding_dropout
        return super().with_defaults().model_copy(update={"embedding_dropout": dropout})


TRANSFORMER: Mapping[str, Any] = {
    "layer_type": "attention",
    "position_encoding": "learned",
    "skip_connection": "residual",
    "norm": "layernorm",
    "num_layers": 4,
}
GPT: Mapping[str, Any] = {
    "layer_type": "attention",
    "position_encoding": "rotary",
    "skip_connection": "residual",
    "norm": "rmsnorm",
    "num_layers": 4,
    "qk_norm": True,
    "activation": "squared-relu",
    "logit_softcap": 15.0,
    "zero_init": True,
}
