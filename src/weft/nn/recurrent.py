"""Recurrent mixers: vanilla RNN, LSTM, GRU in both reset forms, and the fixed window.

Shapes: B rows, T positions, D width, I input width (D unless `inlet` says otherwise).
Every mixer: `y, state = mixer(x, state=None, keep=None)`; x (B, T, I), y (B, T, D); keep (B, T) is True on tokens, then
False; the state is that after each row's last real token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def last_token_state(y: Tensor, token_mask: Tensor | None, before: Tensor | None) -> Tensor:
    """What stands at each row's last real position, (B, D); what stood there `before` where a row has none."""
    if token_mask is None:
        return y[:, -1]
    index = token_mask.sum(1).sub(1).clamp(min=0)
    found = y.gather(1, index[:, None, None].expand(-1, 1, y.size(-1)))[:, 0]
    return torch.where(token_mask.any(1, keepdim=True), found, torch.zeros_like(found) if before is None else before)


def _in_float32(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` as if there were no autocast: cuDNN's recurrent kernels would run in float16, even where bfloat16 was asked
    for, and small gradients are zero there."""

    @wraps(forward)
    def run(self: nn.Module, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> Any:
        if not torch.is_autocast_enabled(x.device.type):
            return forward(self, x, state, token_mask)
        with torch.autocast(x.device.type, enabled=False):
            return forward(self, x.float(), state, token_mask)

    return run


def _hidden(state: Tensor, x: Tensor) -> Tensor:
    """A state (B, D) as torch's cells want it: (1, B, D), in the precision of the input, and cuDNN wants it in one piece."""
    return state[None].to(x.dtype).contiguous()


def _run_steps(cell: Callable[..., Any], x: Tensor, state: Any, weights: nn.RNNBase) -> Any:
    """The state after one position, by torch's single step: the kernels for whole sequences take ten times as long to start."""
    return cell(x[:, 0], state, *weights.all_weights[0])


def _flatten(weights: list[Tensor]) -> list[Tensor]:
    """The same weights as views of one buffer, which is how cuDNN wants them."""
    flat = torch.cat([weight.reshape(-1) for weight in weights])
    parts = torch.split(flat, [weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


class CausalConv(nn.Module):
    """y(t) = f(W [x(t-n+1); ...; x(t)] + b): the fixed-window network (Bengio et al. 2003, where f is tanh). Before the text
    are zeros. Its state is the last n - 1 inputs, (B, n - 1, I)."""

    def __init__(self, dim: int, *, kernel_size: int, input_size: int | None = None, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.kernel_size, self.nonlinearity = kernel_size, NONLINEARITIES[nonlinearity]
        self.hidden = nn.Linear(kernel_size * (input_size or dim), dim)

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        past = x.new_zeros(x.size(0), self.kernel_size - 1, x.size(2)) if state is None else state
        seen = torch.cat([past, x], dim=1)
        windows = seen.unfold(1, self.kernel_size, 1).transpose(2, 3).flatten(2)  # (B, T, reach * I), oldest first
        length = torch.full_like(x[:, 0, 0], x.size(1), dtype=torch.long) if token_mask is None else token_mask.sum(1)
        index = length[:, None] + torch.arange(self.kernel_size - 1, device=x.device)
        state = seen.gather(1, index[..., None].expand(-1, -1, x.size(2)))
        return self.nonlinearity(self.hidden(windows)), state


RNN_STEPS: dict[str, Callable[..., Tensor]] = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}  # torch's kernels


class RNN(nn.Module):
    """h(t) = f(W h(t-1) + U x(t) + b) (Elman 1990, where f is a sigmoid; tanh unless told otherwise). Its state is h, (B, D).
    No fused kernel has the sigmoid: one Python step a position."""

    def __init__(self, dim: int, *, input_size: int | None = None, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.fused = nonlinearity in RNN_STEPS
        self.nonlinearity = nonlinearity
        # where torch has no kernel it has the weights: they begin alike, and have the same names
        self.cell = nn.RNN(input_size or dim, dim, nonlinearity=nonlinearity if self.fused else "tanh", batch_first=True)

    @_in_float32
    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if not self.fused:
            y = self._each(x, state)
            return y, last_token_state(y, token_mask, state)
        if x.size(1) == 1 and token_mask is None and state is not None:
            h: Tensor = _run_steps(RNN_STEPS[self.nonlinearity], x, state.to(x.dtype), self.cell)
            return h[:, None], h
        y, _ = self.cell(x, None if state is None else _hidden(state, x))
        return y, last_token_state(y, token_mask, state)

    def _each(self, x: Tensor, state: Tensor | None) -> Tensor:
        """What is given out at all positions, (B, T, D), one after another."""
        read, again, bias, bias_again = self.cell.all_weights[0]
        h = x.new_zeros(x.size(0), self.cell.hidden_size) if state is None else state.to(x.dtype)
        outputs = []
        for entered in F.linear(x, read, bias).unbind(1):
            h = NONLINEARITIES[self.nonlinearity](entered + F.linear(h, again, bias_again))
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class LSTM(nn.Module):
    """Input, forget and output gates around a cell (Hochreiter & Schmidhuber 1997). Its state is (h, c), each (B, D)."""

    def __init__(self, dim: int, *, input_size: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.cell = nn.LSTM(input_size or dim, dim, batch_first=True)
        # remember at first: without it the gradient over 100 steps is gone before training starts (Jozefowicz et al. 2015)
        _, _, bias, _ = self.cell.all_weights[0]
        nn.init.constant_(bias[dim : 2 * dim], 1.0)

    @_in_float32
    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if x.size(1) == 1 and token_mask is None and state is not None:
            h, c = _run_steps(torch.lstm_cell, x, [part.to(x.dtype) for part in state], self.cell)
            return h[:, None], (h, c)
        past = None if state is None else (_hidden(state[0], x), _hidden(state[1], x))
        if token_mask is None:
            y, (_, c) = self.cell(x, past)
        else:
            y, c = self._freeze_padding(x, past, token_mask)
        return y, (last_token_state(y, token_mask, None if state is None else state[0]), c[0])

    def _freeze_padding(self, x: Tensor, past: tuple[Tensor, Tensor] | None, token_mask: Tensor) -> tuple[Tensor, Tensor]:
        """One more input column, 1 on padding, that shuts the input gate and opens the forget gate: c stands still there.
        (h is read off y. Packing would give the same and leave the fast kernel.)"""
        shut = x.new_zeros(4 * self.dim, 1)
        shut[: self.dim], shut[self.dim : 2 * self.dim] = -1e4, 1e4
        start = past or (x.new_zeros(1, x.size(0), self.dim),) * 2
        read, *others = self.cell.all_weights[0]
        weights = _flatten([torch.cat([read, shut], dim=1), *others])
        x = torch.cat([x, (~token_mask)[..., None].to(x.dtype)], dim=-1)
        y, _, c = torch.lstm(x, start, weights, True, 1, 0.0, self.training, False, True)
        return y, c


class GRU(nn.Module):
    """Update and reset gates, the reset after the matrix: h~ = tanh(U x + b + r * (W h + b')); h = (1 - u) * h + u * h~.
    What fused kernels compute (their z is 1 - u). Its state is h, (B, D)."""

    def __init__(self, dim: int, *, input_size: int | None = None) -> None:
        super().__init__()
        self.cell = nn.GRU(input_size or dim, dim, batch_first=True)

    @_in_float32
    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if x.size(1) == 1 and token_mask is None and state is not None:
            h: Tensor = _run_steps(torch.gru_cell, x, state.to(x.dtype), self.cell)
            return h[:, None], h
        y, _ = self.cell(x, None if state is None else _hidden(state, x))
        return y, last_token_state(y, token_mask, state)


class ResetBeforeGRU(nn.Module):
    """The published GRU (Cho et al. 2014), the reset before the matrix: h~ = tanh(W (r * h) + U x + b);
    h = (1 - u) * h + u * h~. No fused kernel computes it: one Python step a position. Its state is h, (B, D)."""

    def __init__(self, dim: int, *, input_size: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.input_proj = nn.Linear(input_size or dim, 3 * dim)  # U and b of update, reset and candidate
        self.gates = nn.Linear(dim, 2 * dim, bias=False)  # W of update and reset
        self.candidate = nn.Linear(dim, dim, bias=False)  # W of the candidate
        for weight in self.parameters():
            nn.init.uniform_(weight, -(dim**-0.5), dim**-0.5)  # as torch's own recurrent cells

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = x.new_zeros(x.size(0), self.dim) if state is None else state
        outputs = []
        for read in self.input_proj(x).unbind(1):
            update, reset = (read[:, : 2 * self.dim] + self.gates(h)).sigmoid().chunk(2, dim=-1)
            new = (read[:, 2 * self.dim :] + self.candidate(reset * h)).tanh()
            h = torch.lerp(h, new.to(h.dtype), update.to(h.dtype))  # under autocast only the products are in bf16
            outputs.append(h)
        y = torch.stack(outputs, dim=1)
        return y, last_token_state(y, token_mask, state)
