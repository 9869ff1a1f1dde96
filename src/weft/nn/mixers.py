"""The one swap point: everything that lets a position see others. `y, state = mixer(x, state=None, keep=None)`.

A new mixer is one class and one row of MIXERS, and one typed field in `models.tables.StackTable` for each option of its own.
Whatever depends on which mixer a stack is made of asks the row: nothing else compares names. The contract tests (pieces equal
the whole, no position sees the future, padding changes nothing, rows are independent, joined rows equal rows alone, numerical
gradients) pick it up. A row names its class, which is imported when a layer is made: run files are read without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn

    Make = Callable[..., nn.Module]


def _find(source: str | Make) -> Make:
    """What is named, such as "weft.nn.recurrent.LSTM"; a callable is itself."""
    if not isinstance(source, str):
        return source
    module, _, name = source.rpartition(".")
    found: Make = getattr(import_module(module), name)
    return found


class Mixer(NamedTuple):
    """How a mixer differs from the others."""

    # what makes it, or the name of that: make(dim, *, input_size, **options), where `input_size` is the size of its input; if it
    # attends, make(dim, *, num_heads, head_dim, positions, qk_norm, context_length, dropout), as SelfAttention
    source: str | Make
    # the group that `weft info` and explanations count its weights in
    part: str
    # how many vectors of its width make its state, the first of them its last output: a decoder starts from them, an encoder is
    # summed up by them; 0: it has no state, or one of another form
    state: int = 0
    # it has heads that look at all of the window: positions may act inside it, its cache grows, it reads vectors of its own
    # width alone, and a feed-forward layer follows it by default
    attends: bool = False
    # its two-way form, which takes the same arguments but no window; None: two mixers of half the width, one from each end
    bidirectional: str | Make | None = None
    # torch.compile helps; not with fused kernels, which the compiler refuses, or a Python step for each position, which it
    # unrolls
    compiles: bool = False
    # its linear maps, and the embeddings below it, start from small random weights, as in Transformers; False: as torch and its
    # class draw them
    small_init: bool = False
    # its own options with their defaults, as the run file names them; None: the table computes the default from other options
    options: Mapping[str, Any] = {}

    @property
    def make(self) -> Make:
        return _find(self.source)

    @property
    def around(self) -> Make | None:
        """What makes its two-way form."""
        return None if self.bidirectional is None else _find(self.bidirectional)


MIXERS: dict[str, Mixer] = {
    "conv": Mixer(
        "weft.nn.recurrent.CausalConv",
        "conv",
        bidirectional="weft.nn.bidirectional.CenteredConv",
        compiles=True,
        options={"kernel_size": 3, "nonlinearity": "tanh"},
    ),
    "rnn": Mixer("weft.nn.recurrent.RNN", "recurrent", state=1, options={"nonlinearity": "tanh"}),
    "lstm": Mixer("weft.nn.recurrent.LSTM", "recurrent", state=2),
    "gru": Mixer("weft.nn.recurrent.GRU", "recurrent", state=1),
    "gru-reset-before": Mixer("weft.nn.recurrent.ResetBeforeGRU", "recurrent", state=1),
    "attention": Mixer(
        "weft.nn.attention.SelfAttention",
        "attention",
        attends=True,
        bidirectional="weft.nn.attention.bidirectional_attention",
        compiles=True,
        small_init=True,
        options={"num_heads": None, "head_dim": None, "qk_norm": False, "alibi_slopes": None, "attention_dropout": None},
    ),
}


def option_names() -> list[str]:
    """The options that some mixers have and others have not; those of the last row first."""
    return list(dict.fromkeys(option for row in reversed(MIXERS.values()) for option in row.options))


def recurrent() -> list[str]:
    """The mixers whose state is vectors of their width."""
    return [name for name, row in MIXERS.items() if row.state]


def attending() -> list[str]:
    return [name for name, row in MIXERS.items() if row.attends]
