"""Recurrent mixers (Elman RNN, LSTM, both forms of the GRU) and the causal convolution.

Shapes: B batch size, T sequence length, D hidden size, I input size (D by default).
Every mixer is called as `y, state = mixer(x, state=None, token_mask=None)` with x (B, T, I) and y (B, T, D). token_mask (B, T)
is True on tokens and False on the padding after them; the returned state is the one after each row's last token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.linear import OneDNNLinear
from weft.nn.persistent_lstm import has_persistent_kernel, run_persistent


def last_token_state(y: Tensor, token_mask: Tensor | None, initial: Tensor | None) -> Tensor:
    """The vector at each row's last token, (B, D); `initial`, or zeros, for rows without a token."""
    if token_mask is None:
        return y[:, -1]
    index = token_mask.sum(1).sub(1).clamp(min=0)
    last = y.gather(1, index[:, None, None].expand(-1, 1, y.size(-1)))[:, 0]
    return torch.where(token_mask.any(1, keepdim=True), last, torch.zeros_like(last) if initial is None else initial)


def _in_float32(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that runs `forward` without autocast. With autocast, cuDNN's recurrent kernels use float16 even if the autocast
    dtype is bfloat16, and small gradients underflow to zero in float16."""

    @wraps(forward)
    def run(self: nn.Module, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> Any:
        if not torch.is_autocast_enabled(x.device.type):
            return forward(self, x, state, token_mask)
        with torch.autocast(x.device.type, enabled=False):
            return forward(self, x.float(), state, token_mask)

    return run


def _initial_hidden(state: Tensor, x: Tensor) -> Tensor:
    """A state (B, D) as torch's recurrent modules expect it: (1, B, D), in the dtype of the input, contiguous for cuDNN."""
    return state[None].to(x.dtype).contiguous()


def _single_step(cell: Callable[..., Any], x: Tensor, state: Any, weights: list[Tensor]) -> Any:
    """The state after one position, by torch's cell function: kernels for sequences take ten times as long to launch."""
    return cell(x[:, 0], state, *weights)


def _drop_recurrent(module: nn.RNNBase, prob: float) -> list[Tensor]:
    """The weights of a recurrent module, in training with dropout on W, which multiplies h_{t-1} (Merity et al. 2018)."""
    weight_ih, weight_hh, *biases = module.all_weights[0]
    return [weight_ih, F.dropout(weight_hh, prob, module.training), *biases]


def _flatten(weights: list[Tensor]) -> list[Tensor]:
    """Copy the weights into one buffer and return views of it, the layout cuDNN expects."""
    flat = torch.cat([weight.reshape(-1) for weight in weights])
    chunks = torch.split(flat, [weight.numel() for weight in weights])
    return [chunk.view_as(weight) for chunk, weight in zip(chunks, weights, strict=True)]


def _run_kernel(kernel: Callable[..., Any], x: Tensor, initial: Any, weights: list[Tensor], *, training: bool) -> Any:
    """Run one of torch's fused kernels for whole sequences with these weights."""
    # biases, 1 layer, no dropout, one direction, batch first
    return kernel(x, initial, _flatten(weights), True, 1, 0.0, training, False, True)


def _run_sequence(
    kernel: Callable[..., Any], x: Tensor, state: Tensor | None, module: nn.RNNBase, weight_dropout: float
) -> Any:
    """The outputs (B, T, D) of an RNN or GRU, whose state is one vector (B, D)."""
    initial = None if state is None else _initial_hidden(state, x)
    if not (module.training and weight_dropout):
        return module(x, initial)[0]
    if initial is None:
        initial = x.new_zeros(1, x.size(0), module.hidden_size)
    return _run_kernel(kernel, x, initial, _drop_recurrent(module, weight_dropout), training=True)[0]


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


class CausalConv(nn.Module):
    """Causal convolution, the fixed-window network of Bengio et al. (2003), where f is tanh.

        y_t = f(W [x_{t-n+1}; ...; x_t] + b),  kernel size n

    The text is preceded by zeros. State: the last n - 1 inputs, (B, n - 1, I).
    """

    def __init__(self, dim: int, *, kernel_size: int, input_size: int | None = None, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.kernel_size, self.nonlinearity = kernel_size, NONLINEARITIES[nonlinearity]
        self.hidden = OneDNNLinear(kernel_size * (input_size or dim), dim)

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        past = x.new_zeros(x.size(0), self.kernel_size - 1, x.size(2)) if state is None else state
        inputs = torch.cat([past, x], dim=1)
        windows = inputs.unfold(1, self.kernel_size, 1).transpose(2, 3).flatten(2)  # (B, T, n * I), oldest first
        length = torch.full_like(x[:, 0, 0], x.size(1), dtype=torch.long) if token_mask is None else token_mask.sum(1)
        index = length[:, None] + torch.arange(self.kernel_size - 1, device=x.device)
        state = inputs.gather(1, index[..., None].expand(-1, -1, x.size(2)))
        return self.nonlinearity(self.hidden(windows)), state


RNN_CELLS: dict[str, Callable[..., Tensor]] = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}  # fused by torch
RNN_KERNELS: dict[str, Callable[..., Any]] = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}  # for whole sequences


class RNN(nn.Module):
    """Simple recurrent network (Elman 1990, where f is a sigmoid; the default is tanh).

        h_t = f(U x_t + W h_{t-1} + b)

    State: h, (B, D). torch has no fused kernel for the sigmoid, which therefore takes one Python step per position.
    """

    def __init__(
        self, dim: int, *, input_size: int | None = None, nonlinearity: str = "tanh", weight_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fused = nonlinearity in RNN_CELLS
        self.nonlinearity, self.weight_dropout = nonlinearity, weight_dropout
        # without a fused kernel, nn.RNN still provides the weights: same initialization, same names
        self.cell = nn.RNN(input_size or dim, dim, nonlinearity=nonlinearity if self.fused else "tanh", batch_first=True)

    @_in_float32
    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if not self.fused:
            y = self._run_unfused(x, state)
            return y, last_token_state(y, token_mask, state)
        if x.size(1) == 1 and token_mask is None and state is not None:
            weights = _drop_recurrent(self.cell, self.weight_dropout)
            h: Tensor = _single_step(RNN_CELLS[self.nonlinearity], x, state.to(x.dtype), weights)
            return h[:, None], h
        y = _run_sequence(RNN_KERNELS[self.nonlinearity], x, state, self.cell, self.weight_dropout)
        return y, last_token_state(y, token_mask, state)

    def _run_unfused(self, x: Tensor, state: Tensor | None) -> Tensor:
        """The outputs (B, T, D), computed position by position."""
        weight_ih, weight_hh, bias_ih, bias_hh = _drop_recurrent(self.cell, self.weight_dropout)
        h = x.new_zeros(x.size(0), self.cell.hidden_size) if state is None else state.to(x.dtype)
        outputs = []
        for projected in F.linear(x, weight_ih, bias_ih).unbind(1):
            h = NONLINEARITIES[self.nonlinearity](projected + F.linear(h, weight_hh, bias_hh))
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).

        i, f, o = sigmoid(U x_t + W h_{t-1} + b)      input, forget and output gate
        g       = tanh(U_g x_t + W_g h_{t-1} + b_g)
        c_t     = f * c_{t-1} + i * g
        h_t     = o * tanh(c_t)

    State: (h, c), each (B, D). In mixed precision on a GPU, it runs in float16 where that is faster.
    """

    def __init__(self, dim: int, *, input_size: int | None = None, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.weight_dropout = dim, weight_dropout
        self.cell = nn.LSTM(input_size or dim, dim, batch_first=True)
        # forget-gate bias of 1 (Jozefowicz et al. 2015): otherwise gradients over 100 steps vanish before training starts
        _, _, bias, _ = self.cell.all_weights[0]
        nn.init.constant_(bias[dim : 2 * dim], 1.0)

    def lstm_weights(self) -> list[Tensor]:
        """U (4D, I), W (4D, D) and their two biases (4D,): input gate, forget gate, g and output gate."""
        return list(self.cell.all_weights[0])

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if not (torch.is_autocast_enabled(x.device.type) and has_persistent_kernel(x, self.dim)):
            result: tuple[Tensor, tuple[Tensor, Tensor]] = self._forward(x, state, token_mask)
            return result
        with torch.autocast(x.device.type, enabled=False):
            return self._forward_persistent(x.float(), state, token_mask)

    def _forward_persistent(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None, token_mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        weights, inputs = _drop_recurrent(self.cell, self.weight_dropout), x
        if token_mask is not None:
            inputs, weights = self._mark_padding(x, weights, token_mask)
        y, c = run_persistent(inputs, state, weights)
        return y, (last_token_state(y, token_mask, None if state is None else state[0]), c)

    @_in_float32
    def _forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if x.size(1) == 1 and token_mask is None and state is not None:
            weights = _drop_recurrent(self.cell, self.weight_dropout)
            h, c = _single_step(torch.lstm_cell, x, [part.to(x.dtype) for part in state], weights)
            return h[:, None], (h, c)
        y, c = self._run_sequence(x, state, token_mask)
        return y, (last_token_state(y, token_mask, None if state is None else state[0]), c[0])

    def _run_sequence(self, x: Tensor, state: tuple[Tensor, Tensor] | None, token_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs (B, T, D) and the final c (1, B, D)."""
        initial = None if state is None else (_initial_hidden(state[0], x), _initial_hidden(state[1], x))
        if token_mask is None and not (self.training and self.weight_dropout):
            y, (_, c) = self.cell(x, initial)
            return y, c
        weights = _drop_recurrent(self.cell, self.weight_dropout)
        if token_mask is not None:
            x, weights = self._mark_padding(x, weights, token_mask)
        initial = initial or (x.new_zeros(1, x.size(0), self.dim),) * 2
        y, _, c = _run_kernel(torch.lstm, x, initial, weights, training=self.training)
        return y, c

    def _mark_padding(self, x: Tensor, weights: list[Tensor], token_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Inputs and weights with which padding does not change c.

        An extra input feature, 1 on padding, closes the input gate and opens the forget gate. (h is taken from y. Packed
        sequences would give the same result, but not on the fast kernel.)
        """
        padding_weight = x.new_zeros(4 * self.dim, 1)
        padding_weight[: self.dim].fill_(-1e4)
        padding_weight[self.dim : 2 * self.dim].fill_(1e4)
        weight_ih, *other_weights = weights
        x = torch.cat([x, (~token_mask)[..., None].to(x.dtype)], dim=-1)
        return x, [torch.cat([weight_ih, padding_weight], dim=1), *other_weights]


class GRU(nn.Module):
    """Gated recurrent unit with the reset gate after the matrix product, as fused kernels compute it.

        u, r = sigmoid(U x_t + W h_{t-1} + b)         update and reset gate
        n    = tanh(U_n x_t + b + r * (W_n h_{t-1} + b'))
        h_t  = (1 - u) * h_{t-1} + u * n              (torch's z is 1 - u)

    State: h, (B, D).
    """

    def __init__(self, dim: int, *, input_size: int | None = None, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.weight_dropout = weight_dropout
        self.cell = nn.GRU(input_size or dim, dim, batch_first=True)

    @_in_float32
    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if x.size(1) == 1 and token_mask is None and state is not None:
            h: Tensor = _single_step(torch.gru_cell, x, state.to(x.dtype), _drop_recurrent(self.cell, self.weight_dropout))
            return h[:, None], h
        y = _run_sequence(torch.gru, x, state, self.cell, self.weight_dropout)
        return y, last_token_state(y, token_mask, state)


class ResetBeforeGRU(nn.Module):
    """Gated recurrent unit as published (Cho et al. 2014), with the reset gate before the matrix product.

        u, r = sigmoid(U x_t + W h_{t-1} + b)         update and reset gate
        n    = tanh(U_n x_t + W_n (r * h_{t-1}) + b)
        h_t  = (1 - u) * h_{t-1} + u * n

    State: h, (B, D). No fused kernel computes this form: it takes one Python step per position.
    """

    def __init__(self, dim: int, *, input_size: int | None = None, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.weight_dropout = dim, weight_dropout
        self.input_proj = OneDNNLinear(input_size or dim, 3 * dim)  # U and b of update gate, reset gate and candidate
        self.gates = nn.Linear(dim, 2 * dim, bias=False)  # W of update and reset gate
        self.candidate = nn.Linear(dim, dim, bias=False)  # W of the candidate
        for weight in self.parameters():
            nn.init.uniform_(weight, -(dim**-0.5), dim**-0.5)  # like torch's recurrent modules

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = x.new_zeros(x.size(0), self.dim) if state is None else state
        gates, candidates = (
            F.dropout(part.weight, self.weight_dropout, self.training) for part in (self.gates, self.candidate)
        )
        outputs = []
        for projected in self.input_proj(x).unbind(1):
            update, reset = (projected[:, : 2 * self.dim] + F.linear(h, gates)).sigmoid().chunk(2, dim=-1)
            candidate = (projected[:, 2 * self.dim :] + F.linear(reset * h, candidates)).tanh()
            h = torch.lerp(h, candidate.to(h.dtype), update.to(h.dtype))  # under autocast only the products are in bfloat16
            outputs.append(h)
        y = torch.stack(outputs, dim=1)
        return y, last_token_state(y, token_mask, state)
