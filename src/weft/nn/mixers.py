"""The registry of sequence mixers: the sublayers through which one position sees others.

Every mixer is called as `y, state = mixer(x, state=None, token_mask=None)`.

To add a mixer, write its class, add one row to MIXERS, and add one typed field to `models.config.StackConfig` for each option
of its own. All code that depends on the type of mixer reads the row; nothing else compares names. The contract tests then
cover the new mixer: reading in chunks equals reading at once, no position sees the future, padding has no effect, rows are
independent, batched rows equal single rows, and gradients match numerical ones.

A row stores the dotted name of its class, which is imported when a layer is built: run files are parsed without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn

    Factory = Callable[..., nn.Module]


def _resolve(module: str | Factory) -> Factory:
    """Import a dotted name such as "weft.nn.recurrent.LSTM"; return a callable unchanged."""
    if not isinstance(module, str):
        return module
    path, _, name = module.rpartition(".")
    factory: Factory = getattr(import_module(path), name)
    return factory


class Mixer(NamedTuple):
    """One row of the registry: the properties in which mixers differ."""

    # Class or factory, or its dotted name. Called as module(dim, *, input_size, **options), or, if the mixer attends, as
    # module(dim, *, num_heads, head_dim, positions, qk_norm, context_length, dropout), like SelfAttention.
    module: str | Factory
    # Group of parameters in which `weft info` and explanations count its weights.
    component: str
    # Number of vectors of the hidden size in its state; the first one is its last output. A decoder is initialized from them,
    # an encoder is summarized by them. 0: no state, or a state of another form.
    num_state_vectors: int = 0
    # Multi-head attention over the whole context: it supports position encodings inside attention, its state is a growing
    # key-value cache, and its input has the hidden size.
    attends: bool = False
    # Size of the feed-forward sublayer that follows it by default, as a multiple of the hidden size; 0 for none.
    ffn_ratio: int = 0
    # Its bidirectional form, which takes the same arguments except context_length. None: two mixers of half the hidden size,
    # one in each direction.
    bidirectional: str | Factory | None = None
    # Whether torch.compile helps. It does not with fused kernels, which the compiler does not support, nor with a Python loop
    # over positions, which it unrolls.
    compiles: bool = False
    # Whether its linear layers, and the embeddings below it, start from small normal weights, as in Transformers. False: the
    # default initialization of torch and of its class.
    small_init: bool = False
    # Its own options with their defaults, by their names in the run file. None: the config computes the default.
    options: Mapping[str, Any] = {}

    @property
    def factory(self) -> Factory:
        return _resolve(self.module)

    @property
    def bidirectional_factory(self) -> Factory | None:
        return None if self.bidirectional is None else _resolve(self.bidirectional)


WEIGHT_DROPOUT: Mapping[str, Any] = {"weight_dropout": 0.0}
MIXERS: dict[str, Mixer] = {
    "conv": Mixer(
        "weft.nn.recurrent.CausalConv",
        "conv",
        bidirectional="weft.nn.bidirectional.CenteredConv",
        compiles=True,
        options={"kernel_size": 3, "nonlinearity": "tanh"},
    ),
    "rnn": Mixer("weft.nn.recurrent.RNN", "recurrent", num_state_vectors=1, options={"nonlinearity": "tanh", **WEIGHT_DROPOUT}),
    "lstm": Mixer("weft.nn.recurrent.LSTM", "recurrent", num_state_vectors=2, options=WEIGHT_DROPOUT),
    "gru": Mixer("weft.nn.recurrent.GRU", "recurrent", num_state_vectors=1, options=WEIGHT_DROPOUT),
    "gru-reset-before": Mixer("weft.nn.recurrent.ResetBeforeGRU", "recurrent", num_state_vectors=1, options=WEIGHT_DROPOUT),
    "mingru": Mixer("weft.nn.min_rnn.MinGRU", "recurrent", num_state_vectors=1, ffn_ratio=2, compiles=True),
    "minlstm": Mixer("weft.nn.min_rnn.MinLSTM", "recurrent", num_state_vectors=1, ffn_ratio=2, compiles=True),
    "attention": Mixer(
        "weft.nn.attention.SelfAttention",
        "attention",
        attends=True,
        ffn_ratio=4,
        bidirectional="weft.nn.attention.bidirectional_attention",
        compiles=True,
        small_init=True,
        options={
            "num_heads": None,
            "head_dim": None,
            "qk_norm": False,
            "alibi_slopes": None,
            "rope_theta": None,
            "attention_dropout": None,
            "bias": True,
            "conv_kernel": None,
        },
    ),
}


def option_names() -> list[str]:
    """Options that only some mixers have, from the last row of MIXERS to the first."""
    return list(dict.fromkeys(option for row in reversed(MIXERS.values()) for option in row.options))


def recurrent_mixers() -> list[str]:
    """Names of the mixers whose state is one or more vectors of the hidden size."""
    return [name for name, row in MIXERS.items() if row.num_state_vectors]


def attention_mixers() -> list[str]:
    """Names of the mixers that are multi-head attention."""
    return [name for name, row in MIXERS.items() if row.attends]
