"""The [model] table of networks, and the presets of language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from weft.config import Choice, Config, invalid
from weft.nn.choices import ACTIVATIONS, NONLINEARITIES
from weft.nn.mixers import MIXERS, Mixer, option_names

INPUT_ENCODINGS = ("none", "sinusoidal", "learned")  # added to the embeddings: for any stack
ATTENTION_ENCODINGS = ("relative", "relative-bias", "alibi", "rotary")  # inside attention
CONNECTIONS = ("none", "residual", "highway", "dense")
NORMS = ("none", "layernorm", "rmsnorm")
NORM_POSITIONS = ("pre", "post")
# options of a mixture of experts, with their defaults
EXPERT_OPTIONS: Mapping[str, Any] = {"experts_per_token": 2, "num_shared_experts": 0, "balance_loss_weight": 0.01}
Count = Annotated[int, Field(le=2**20)]  # number of heads or hidden units; limited so that tensor sizes fit into 64 bits
Size = Annotated[int, Field(ge=1, le=65536)]


class StackConfig(Config):
    """A stack of layers of one type."""

    layer_type: Annotated[str, Choice(MIXERS)] = "lstm"
    """Type of the layers."""
    num_layers: int = Field(2, ge=1, le=512)
    """Number of layers."""
    hidden_size: int = Field(256, ge=1, le=65536)
    """Size of the hidden states."""
    kernel_size: int | None = Field(None, ge=1, le=4096)
    """conv only: number of tokens each position sees."""
    nonlinearity: Annotated[str, Choice(NONLINEARITIES)] | None = None
    """rnn and conv only: the function f in h = f(W h + U x + b)."""
    weight_dropout: float | None = Field(None, ge=0.0, lt=1.0)
    """rnn, lstm and gru only: dropout on the recurrent weights (DropConnect), with one mask per batch."""
    bidirectional: bool = False
    """Read the text in both directions. Recurrent layers use half of hidden_size for each."""
    # in a list, 0 means that all heads of the layer are pruned
    num_heads: Count | list[Count] | None = None
    """attention only: number of heads, or a list with one number per layer."""
    head_dim: Size | list[Size] | None = None
    """attention only: size of each head. Default: hidden_size / num_heads."""
    position_encoding: Annotated[str, Choice((*INPUT_ENCODINGS, *ATTENTION_ENCODINGS))] = "none"
    """Position encoding. relative, relative-bias, alibi and rotary require attention."""
    alibi_slopes: list[list[float]] | None = None
    """alibi only: the slope of each head in each layer. Default: as in the paper."""
    rope_theta: float | None = Field(None, gt=1.0, le=1e12)
    """rotary only: base of the frequencies. Default: 10000."""
    ffn_dim: Annotated[Count, Field(ge=0)] | None = None
    """Hidden size of the feed-forward sublayer; 0 for none. Default: 4 x hidden_size with attention, 2 x with
    mingru and minlstm, else 0."""
    activation: Annotated[str, Choice(ACTIVATIONS)] | None = None
    """Activation of the feed-forward sublayer."""
    num_experts: int | None = Field(None, ge=0, le=4096)
    """Number of experts in each feed-forward sublayer, each of size ffn_dim and without biases; 0 for a dense sublayer."""
    experts_per_token: int | None = Field(None, ge=1, le=4096)
    """num_experts only: number of experts that each token uses. Default: 2."""
    num_shared_experts: int | None = Field(None, ge=0, le=4096)
    """num_experts only: number of additional experts that every token uses. Default: 0."""
    balance_loss_weight: float | None = Field(None, ge=0.0)
    """num_experts only: weight of the load-balancing loss of each layer in the training loss. Default: 0.01."""
    qk_norm: bool | None = None
    """attention only: normalize queries and keys."""
    bias: bool | None = None
    """attention only: add biases in attention and the feed-forward sublayer."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Dropout on layer outputs, attention weights and embeddings."""
    attention_dropout: float | None = Field(None, ge=0.0, lt=1.0)
    """attention only: dropout on attention weights. Default: dropout."""
    conv_kernel: int | None = Field(None, ge=1, le=4096)
    """attention only: kernel size of a convolution after attention, between two half feed-forward sublayers (Conformer)."""
    skip_connection: Annotated[str, Choice(CONNECTIONS)] = "none"
    """Connection around each layer."""
    norm: Annotated[str, Choice(NORMS)] = "none"
    """Normalization."""
    norm_position: Annotated[str, Choice(NORM_POSITIONS)] = "pre"
    """Normalize before each layer (pre) or after each residual sum (post)."""
    norm_eps: float | None = Field(None, gt=0.0, lt=1.0)
    """Epsilon of the normalization."""

    @property
    def traits(self) -> Mixer:
        """The row of the mixer registry for the layer type."""
        return MIXERS[self.layer_type]

    @property
    def is_post_norm(self) -> bool:
        return self.norm_position == "post"

    def mixer_options(self) -> dict[str, Any]:
        """The options of the layer type, with its defaults for those that are not set."""
        values = {option: value for option in self.traits.options if (value := getattr(self, option)) is not None}
        return {**self.traits.options, **values}

    @model_validator(mode="after")
    def check_stack(self) -> Self:
        traits = self.traits
        for option in option_names():
            if option not in traits.options and getattr(self, option) is not None:
                raise invalid(option, f"not used with layer_type {self.layer_type!r}", "remove it")
        if self.position_encoding in ATTENTION_ENCODINGS and not traits.attends:
            fix = f"use {', '.join(INPUT_ENCODINGS[:-1])} or {INPUT_ENCODINGS[-1]}"
            raise invalid("position_encoding", f"{self.position_encoding!r} requires layer_type 'attention'", fix)
        if self.bidirectional and traits.attends and traits.bidirectional is None:
            raise invalid("bidirectional", f"not possible with layer_type {self.layer_type!r}", "set it to false")
        if self.is_post_norm and self.norm == "none":
            raise invalid("norm_position", "'post' requires norm 'layernorm' or 'rmsnorm'")
        if self.is_post_norm and self.skip_connection != "residual":
            raise invalid("norm_position", "'post' requires skip_connection 'residual'", 'set norm_position = "pre"')
        if self.norm_eps is not None and self.norm == "none":
            raise invalid("norm_eps", "not used with norm 'none'", "remove it")
        if self.bidirectional and traits.bidirectional is None and self.hidden_size % 2:
            raise invalid("hidden_size", f"must be even for bidirectional layers, got {self.hidden_size}")
        has_ffn = (traits.ffn_ratio if self.ffn_dim is None else self.ffn_dim) > 0
        if not has_ffn and self.activation is not None:
            raise invalid("activation", "not used without a feed-forward sublayer", "set ffn_dim or remove activation")
        self._check_experts(has_ffn=has_ffn)
        if traits.attends:
            self._check_heads()
        if self.conv_kernel is not None and (self.skip_connection != "residual" or self.is_post_norm or not has_ffn):
            raise invalid("conv_kernel", "requires skip_connection 'residual', norm_position 'pre' and a feed-forward sublayer")
        return self

    def _check_experts(self, *, has_ffn: bool) -> None:
        if not self.num_experts:
            for option in EXPERT_OPTIONS:
                if getattr(self, option) is not None:
                    raise invalid(option, "not used without num_experts", f"set num_experts or remove {option}")
            return
        if self.num_experts == 1:
            raise invalid("num_experts", "must be 0 or at least 2, got 1")
        if not has_ffn:
            raise invalid("num_experts", "not used without a feed-forward sublayer", "set ffn_dim or remove num_experts")
        if (self.experts_per_token or EXPERT_OPTIONS["experts_per_token"]) > self.num_experts:
            raise invalid("experts_per_token", f"{self.experts_per_token} exceeds num_experts {self.num_experts}", "lower it")

    def _check_heads(self) -> None:
        num_heads = default_num_heads(self.hidden_size) if self.num_heads is None else self.num_heads
        for option, values in (("num_heads", num_heads), ("head_dim", self.head_dim)):
            if isinstance(values, list) and len(values) != self.num_layers:
                raise invalid(option, f"{len(values)} values for {self.num_layers} layers", "set one number, or one per layer")
        heads = num_heads if isinstance(num_heads, list) else [num_heads] * self.num_layers
        for count, size in zip(heads, _per_layer(self.head_dim, self.num_layers), strict=True):
            if count < 0 or (count == 0 and not isinstance(num_heads, list)):
                raise invalid("num_heads", f"must be at least 1, got {count}")
            if count == 0 and size is None:
                raise invalid("head_dim", "required if a layer has no heads")
            if size is None and self.hidden_size % count:
                fix = "change one of them or set head_dim"
                raise invalid("num_heads", f"hidden_size {self.hidden_size} is not divisible by {count}", fix)
            head_dim = size or self.hidden_size // count
            if self.position_encoding == "rotary" and head_dim % 2:
                fix = "change num_heads or set head_dim"
                raise invalid("position_encoding", f"'rotary' requires an even head size, got {head_dim}", fix)
        if self.position_encoding == "relative-bias" and len(set(heads)) > 1:
            problem = "'relative-bias' requires the same number of heads in all layers, which share it"
            raise invalid("position_encoding", problem, "set one number of heads")
        if self.rope_theta is not None and self.position_encoding != "rotary":
            raise invalid("rope_theta", f"not used with position_encoding {self.position_encoding!r}", "remove it")
        self._check_slopes(heads)

    def _check_slopes(self, heads: list[int]) -> None:
        if self.alibi_slopes is None:
            return
        if self.position_encoding != "alibi":
            raise invalid("alibi_slopes", f"not used with position_encoding {self.position_encoding!r}", "remove it")
        counts = [len(slopes) for slopes in self.alibi_slopes]
        if counts != heads:
            raise invalid("alibi_slopes", f"{counts} slopes per layer for {heads} heads", "set one slope per head")

    def heads_in_layer(self, layer: int) -> tuple[int, int]:
        """The number of heads in a layer and the size of each. Requires a resolved table."""
        num_heads = _per_layer(self.num_heads, self.num_layers)[layer] or 0
        head_dim = _per_layer(self.head_dim, self.num_layers)[layer]
        return num_heads, head_dim or self.hidden_size // num_heads

    def with_defaults(self) -> Self:
        """The same table with a value for every option that applies."""
        ffn_dim = self.traits.ffn_ratio * self.hidden_size if self.ffn_dim is None else self.ffn_dim
        values: dict[str, Any] = {option: value for option, value in self.mixer_options().items() if value is not None}
        values["ffn_dim"] = ffn_dim
        if ffn_dim:
            values["activation"] = self.activation or "gelu"
        values["num_experts"] = self.num_experts or None
        if self.num_experts:
            set_options = {option: value for option in EXPERT_OPTIONS if (value := getattr(self, option)) is not None}
            values |= {**EXPERT_OPTIONS, **set_options}
        if self.traits.attends:
            dropout = self.dropout if self.attention_dropout is None else self.attention_dropout
            values |= {"num_heads": self.num_heads or default_num_heads(self.hidden_size), "attention_dropout": dropout}
        return self.model_copy(update=values)


def _per_layer(value: int | list[int] | None, num_layers: int) -> list[int | None]:
    """One value per layer, for an option that is either a list or one value for all layers."""
    return list[int | None](value) if isinstance(value, list) else [value] * num_layers


def default_num_heads(hidden_size: int) -> int:
    """The largest number of heads that divides the hidden size and gives each head a size of at least 32."""
    return next(heads for heads in range(max(1, hidden_size // 32), 0, -1) if hidden_size % heads == 0)


class EmbeddedStackConfig(StackConfig):
    """A stack on top of an embedding."""

    embedding_dim: int | None = Field(None, ge=1, le=65536)
    """Size of the token embeddings. Default: hidden_size. Not with attention."""
    embedding_norm: bool = False
    """Normalize the embeddings before the first layer, as in BERT."""

    @model_validator(mode="after")
    def check_embedding(self) -> Self:
        if self.traits.attends and self.input_dim() != self.hidden_size:
            raise invalid("embedding_dim", f"must equal hidden_size with layer_type {self.layer_type!r}", "remove it")
        return self

    def input_dim(self) -> int:
        """The size of the token embeddings."""
        return self.embedding_dim or self.hidden_size


class LanguageModelConfig(StackConfig):
    """An embedding, a stack, and an output layer that predicts the next token."""

    tie_embeddings: bool = False
    """Share the weights of the embedding and the output layer."""
    embedding_dropout: float | None = Field(None, ge=0.0, lt=1.0)
    """Dropout on the embeddings. Default: dropout."""
    variational_dropout: bool = False
    """Recurrent layers only: dropout and embedding_dropout use one mask for all positions of a row."""
    word_type_dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Recurrent layers only: fraction of the vocabulary whose embeddings are zero in a training batch."""
    activation_regularization: float = Field(0.0, ge=0.0)
    """Recurrent layers only: weight of AR, the mean square of the outputs of the last layer, in the training loss."""
    temporal_activation_regularization: float = Field(0.0, ge=0.0)
    """Recurrent layers only: weight of TAR, the mean square of their change per position, in the training loss."""
    head_bias: bool = True
    """Add a bias to the logits."""
    logit_softcap: float = Field(0.0, ge=0.0)
    """Soft cap on the logits: cap * tanh(logit / cap); 0 for none."""
    zero_init: bool = False
    """Initialize residual output projections and the LM head to zero."""

    @model_validator(mode="after")
    def check_language_model(self) -> Self:
        if self.bidirectional:
            raise invalid("bidirectional", "not possible for a language model, which would see the tokens it predicts")
        if self.tie_embeddings and self.zero_init:
            problem = "cannot be combined with zero_init, which would set the embedding to zero"
            raise invalid("tie_embeddings", problem, "set zero_init = false")
        self._check_regularization()
        return self

    def _check_regularization(self) -> None:
        penalties = ("activation_regularization", "temporal_activation_regularization")
        for option in ("variational_dropout", "word_type_dropout", *penalties):
            if getattr(self, option) and not self.traits.num_state_vectors:
                raise invalid(option, f"not used with layer_type {self.layer_type!r}", "remove it")
        # elsewhere, the outputs of the last layer are not what the output layer sees
        for option in penalties:
            if getattr(self, option) and (self.skip_connection, self.norm) != ("none", "none"):
                raise invalid(option, "requires skip_connection 'none' and norm 'none'")

    @property
    def penalizes_activations(self) -> bool:
        """Whether the training loss has a penalty on the outputs of the last layer."""
        return self.activation_regularization > 0 or self.temporal_activation_regularization > 0

    def with_defaults(self) -> Self:
        dropout = self.dropout if self.embedding_dropout is None else self.embedding_dropout
        return super().with_defaults().model_copy(update={"embedding_dropout": dropout})


# One layer alone only adds up what it reads: gates that see what was read before need a second one.
MIN_RNN: Mapping[str, Any] = {"num_layers": 2, "skip_connection": "residual", "norm": "layernorm"}
MIN_RNNS: Mapping[str, Mapping[str, Any]] = {name: {**MIN_RNN, "layer_type": name} for name in ("mingru", "minlstm")}
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
