"""The one swap point: everything that lets a position see others. `y, state = mixer(x, state=None, keep=None)`.

A new mixer is one class and one row of MIXERS, and one typed field in `models.tables.StackTable` for each option of its own.
Whatever depends on which mixer a stack is made of asks the row: nothing else compares names. The contract tests (pieces equal
the whole, no position sees the future, padding changes nothing, rows are independent, joined rows equal rows alone, numerical
gradients) pick it up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.attention import SelfAttention
from weft.nn.recurrent import GRU, LSTM, NONLINEARITIES, RNN, GRUBefore, Window
from weft.nn.state import each, leaves


def flipped(x: Tensor, keep: Tensor | None) -> Tensor:
    """Each row's real positions in reverse order, padding left where it is; (B, T, D)."""
    if keep is None:
        return x.flip(1)
    at = torch.arange(x.size(1), device=x.device)
    index = torch.where(keep, keep.sum(1, keepdim=True) - 1 - at, at)
    return x.gather(1, index[..., None].expand_as(x))


class Centred(nn.Module):
    """y(t) = f(W [x(t-k); ...; x(t+k)] + b), n = 2k + 1 positions: a window with its position in the middle, the
    convolution of Collobert et al. (2011) and Kim (2014). An even n sees one more after than before. Around the text are
    zeros; there is no state, for nothing is read piece by piece."""

    def __init__(self, dim: int, *, context: int, inlet: int | None = None, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.reach, self.nonlinearity = context, NONLINEARITIES[nonlinearity]
        # not named as a one-way window's, which has the same shape and means other positions
        self.around = nn.Linear(context * (inlet or dim), dim)

    def forward(self, x: Tensor, state: None = None, keep: Tensor | None = None) -> tuple[Tensor, None]:
        if state is not None:
            raise ValueError("two-way layers read a whole sequence at once")
        real = x if keep is None else x.masked_fill(~keep[..., None], 0.0)
        before = (self.reach - 1) // 2
        seen = F.pad(real, (0, 0, before, self.reach - 1 - before))
        windows = seen.unfold(1, self.reach, 1).transpose(2, 3).flatten(2)  # (B, T, reach * I), first to last
        return self.nonlinearity(self.around(windows)), None


class Both(nn.Module):
    """Two mixers of half the width, one from each end, side by side. Its state looks like that of one mixer, one way."""

    def __init__(self, ahead: nn.Module, back: nn.Module) -> None:
        super().__init__()
        self.ahead, self.back = ahead, back

    def forward(self, x: Tensor, state: None = None, keep: Tensor | None = None) -> tuple[Tensor, Any]:
        if state is not None:
            raise ValueError("two-way layers read a whole sequence at once")
        y, last = self.ahead(x, None, keep)
        z, first = self.back(flipped(x, keep), None, keep)
        others = iter(leaves(first))
        return torch.cat([y, flipped(z, keep)], dim=-1), each(lambda a: torch.cat([a, next(others)], dim=-1), last)


class Mixer(NamedTuple):
    """How a mixer differs from the others."""

    # make(width, *, inlet, **options), where `inlet` is the width of what it reads; if it attends, make(width, *, heads,
    # head_size, positions, inner_norm, window, dropout), as SelfAttention
    make: Callable[..., nn.Module]
    # the group that `weft info` and explanations count its weights in
    part: str
    # how many vectors of its width make its state, the first of them its last output: a decoder starts from them, an encoder is
    # summed up by them; 0: it has no state, or one of another form
    state: int = 0
    # it has heads that look at all of the window: positions may act inside it, its cache grows, it reads vectors of its own
    # width alone, and a feed-forward layer follows it by default
    attends: bool = False
    # its two-way form, which takes the same arguments but no window; None: two mixers of half the width, one from each end
    around: Callable[..., nn.Module] | None = None
    # torch.compile helps; not with fused kernels, which the compiler refuses, or a Python step for each position, which it
    # unrolls
    compiles: bool = False
    # its linear maps, and the embeddings below it, start from small random weights, as in Transformers; False: as torch and its
    # class draw them
    small_init: bool = False
    # its own options with their defaults, as the run file names them; None: the table computes the default from other options
    options: Mapping[str, Any] = {}


MIXERS: dict[str, Mixer] = {
    "window": Mixer(Window, "window", around=Centred, compiles=True, options={"context": 3, "nonlinearity": "tanh"}),
    "rnn": Mixer(RNN, "recurrent", state=1, options={"nonlinearity": "tanh"}),
    "lstm": Mixer(LSTM, "recurrent", state=2),
    "gru": Mixer(GRU, "recurrent", state=1),
    "gru-before": Mixer(GRUBefore, "recurrent", state=1),
    "attention": Mixer(
        SelfAttention,
        "attention",
        attends=True,
        around=partial(SelfAttention, window="two-way"),
        compiles=True,
        small_init=True,
        options={"heads": None, "head_size": None, "qk_norm": False, "slopes": None, "attention_dropout": None},
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
