"""What fused recurrent kernels keep to themselves: gates and cell states, recomputed from what went in and what came out.

Shapes: B rows, T positions, D width, I input width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import UsageError
from weft.explain.hooks import Activation
from weft.nn.recurrent import GRU, LSTM, RNN, ResetBeforeGRU
from weft.nn.state import tree_leaves

CellValues = dict[str, Tensor]  # quantities by name, (B, T, D) each, "hidden" first


def _before(y: Tensor, start: Tensor | None) -> Tensor:
    """What stood there one position earlier, h(t - 1), (B, T, D)."""
    first = torch.zeros_like(y[:, :1]) if start is None else start[:, None].to(y.dtype)
    return torch.cat([first, y[:, :-1]], dim=1)


def _products(part: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """U x + b and W h + b' of all gates at all positions."""
    read, again, bias, bias_again = part.cell.all_weights[0]
    return F.linear(x, read, bias), F.linear(h, again, bias_again)


def _rnn(part: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    return {"hidden": y}


def _lstm(part: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    start = None if state is None else state[0]
    read, again = _products(part, x, _before(y, start))
    opened, kept, new, shown = (read + again).chunk(4, dim=-1)
    opened, kept, new, shown = opened.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid()
    c, cells = torch.zeros_like(y[:, 0]) if state is None else state[1].to(y.dtype), []
    for at in range(y.size(1)):
        c = kept[:, at] * c + opened[:, at] * new[:, at]
        cells.append(c)
    return {
        "hidden": y,
        "cell": torch.stack(cells, dim=1),
        "input gate": opened,
        "forget gate": kept,
        "output gate": shown,
        "candidate": new,
    }


def _gru(part: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    read, again = _products(part, x, _before(y, state))
    width = y.size(-1)
    reset, kept = (read + again)[..., : 2 * width].sigmoid().chunk(2, dim=-1)
    new = (read[..., 2 * width :] + reset * again[..., 2 * width :]).tanh()
    return {"hidden": y, "update gate": 1 - kept, "reset gate": reset, "candidate": new}


def _gru_before(part: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    h, width = _before(y, state), y.size(-1)
    read = part.input_proj(x)
    update, reset = (read[..., : 2 * width] + part.gates(h)).sigmoid().chunk(2, dim=-1)
    new = (read[..., 2 * width :] + part.candidate(reset * h)).tanh()
    return {"hidden": y, "update gate": update, "reset gate": reset, "candidate": new}


# a new recurrent mixer is one function and one line here
CELLS: Mapping[type[nn.Module], Callable[[Any, Tensor, Tensor, Any], CellValues]] = {
    RNN: _rnn,
    LSTM: _lstm,
    GRU: _gru,
    ResetBeforeGRU: _gru_before,
}


def recurrent(model: nn.Module) -> list[str]:
    """The names of the recurrent parts, lowest first."""
    return [name for name, part in model.named_modules() if type(part) in CELLS]


@torch.no_grad()
def cell_values(seen: Activation) -> CellValues:
    """Hidden and cell states and gates of a watched call of a recurrent part without padding, position by position."""
    find = CELLS.get(type(seen.part))
    if find is None:
        raise UsageError("units", f"{seen.name!r} is not a recurrent layer and has no gates")
    x, state, _ = seen.inputs
    past = tuple(leaf for leaf in tree_leaves(state))
    return find(seen.part, x, seen.output[0], past[0] if len(past) == 1 else past or None)
