"""Gates and cell states of recurrent layers, which fused kernels do not return, recomputed from inputs and outputs.

Shapes: B batch size, T positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import UsageError
from weft.explain.hooks import Activation
from weft.nn.min_rnn import MinGRU, MinLSTM
from weft.nn.recurrent import GRU, LSTM, RNN, ResetBeforeGRU
from weft.nn.scan import gates_and_candidates
from weft.nn.state import tree_leaves

CellValues = dict[str, Tensor]  # (B, T, D) by name, "hidden" first


def _previous(y: Tensor, initial: Tensor | None) -> Tensor:
    """h(t - 1) for the outputs h(t): (B, T, D), shifted by one position. Without an initial state, h(0) is zero."""
    first = torch.zeros_like(y[:, :1]) if initial is None else initial[:, None].to(y.dtype)
    return torch.cat([first, y[:, :-1]], dim=1)


def _projections(module: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The input projection U x + b and the recurrent projection W h + b' of all gates at all positions."""
    weight_ih, weight_hh, bias_ih, bias_hh = module.cell.all_weights[0]
    return F.linear(x, weight_ih, bias_ih), F.linear(h, weight_hh, bias_hh)


def _rnn(module: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    return {"hidden": y}


def _lstm(module: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    from_input, from_hidden = _projections(module, x, _previous(y, None if state is None else state[0]))
    i, f, g, o = (from_input + from_hidden).chunk(4, dim=-1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c, cells = torch.zeros_like(y[:, 0]) if state is None else state[1].to(y.dtype), []
    for t in range(y.size(1)):
        c = f[:, t] * c + i[:, t] * g[:, t]
        cells.append(c)
    return {
        "hidden": y,
        "cell": torch.stack(cells, dim=1),
        "input gate": i,
        "forget gate": f,
        "output gate": o,
        "candidate": g,
    }


def _gru(module: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    from_input, from_hidden = _projections(module, x, _previous(y, state))
    dim = y.size(-1)
    r, z = (from_input + from_hidden)[..., : 2 * dim].sigmoid().chunk(2, dim=-1)
    n = (from_input[..., 2 * dim :] + r * from_hidden[..., 2 * dim :]).tanh()
    # the update gate is the weight of the candidate, as in ResetBeforeGRU; torch's z is the weight of the old state
    return {"hidden": y, "update gate": 1 - z, "reset gate": r, "candidate": n}


def _reset_before_gru(module: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    h, dim = _previous(y, state), y.size(-1)
    from_input = module.input_proj(x)
    update, reset = (from_input[..., : 2 * dim] + module.gates(h)).sigmoid().chunk(2, dim=-1)
    candidate = (from_input[..., 2 * dim :] + module.candidate(reset * h)).tanh()
    return {"hidden": y, "update gate": update, "reset gate": reset, "candidate": candidate}


def _min_gru(module: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    _, update, candidates = gates_and_candidates(module.input_proj(x), module.num_gates)
    return {"hidden": y, "update gate": update, "candidate": candidates}


def _min_lstm(module: Any, x: Tensor, y: Tensor, state: Any) -> CellValues:
    """The gates are those that multiply: divided by their sum."""
    forget, new, candidates = gates_and_candidates(module.input_proj(x), module.num_gates)
    return {"hidden": y, "input gate": new, "forget gate": forget, "candidate": candidates}


# to support another recurrent mixer, add its function
CELLS: Mapping[type[nn.Module], Callable[[Any, Tensor, Tensor, Any], CellValues]] = {
    RNN: _rnn,
    LSTM: _lstm,
    GRU: _gru,
    ResetBeforeGRU: _reset_before_gru,
    MinGRU: _min_gru,
    MinLSTM: _min_lstm,
}


def recurrent_modules(model: nn.Module) -> list[str]:
    """The names of the recurrent modules, lowest first."""
    return [name for name, module in model.named_modules() if type(module) in CELLS]


@torch.no_grad()
def cell_values(call: Activation) -> CellValues:
    """Hidden states, cell states and gates at each position of a recorded call of a recurrent module without padding."""
    recompute = CELLS.get(type(call.part))
    if recompute is None:
        raise UsageError("units", f"{call.name!r} is not a recurrent layer and has no gates")
    x, state, _ = call.inputs
    leaves = tuple(tree_leaves(state))
    return recompute(call.part, x, call.output[0], leaves[0] if len(leaves) == 1 else leaves or None)
