"""Recurrent layers as operators of ONNX.

torch.onnx unrolls nn.LSTM, nn.GRU and nn.RNN to the length of its example, and the exported file fails at every other length.
Here each is one operator, `weft::lstm` and so on, that becomes the operator of ONNX with the same name. minGRU and minLSTM are
GRUs without recurrent weights.

Weights are as in ONNX, for N directions (1 or 2) and G gates: w (N, G D, I), r (N, G D, D) and b (N, 2 G D); states are
(N, B, D), outputs (B, T, N D), 0 on padding. B batch size, T sequence length, D hidden size, I input size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.bidirectional import Bidirectional, reverse_sequences
from weft.nn.min_rnn import MinLSTM
from weft.nn.recurrent import GRU, LSTM, NONLINEARITIES, RNN, ResetBeforeGRU
from weft.nn.scan import update_logits

Step = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor], tuple[Tensor, ...]]


def _run(
    step: Step, x: Tensor, lengths: Tensor, states: tuple[Tensor, ...], weights: tuple[Tensor, Tensor, Tensor]
) -> list[Tensor]:
    """The outputs and the final states of a recurrent network, position by position.

    `step(projected, states, r, bias)` is the new state of one direction, h first, from the projected input (B, G D).
    """
    mask = torch.arange(x.size(1)) < lengths[:, None]
    outputs, finals = list[Tensor](), list[list[Tensor]]()
    for direction, (w, r, b) in enumerate(zip(*weights, strict=True)):
        state, steps = tuple(part[direction] for part in states), list[Tensor]()
        inputs = reverse_sequences(x, mask) if direction else x
        for position, projected in enumerate(F.linear(inputs, w, b.chunk(2)[0]).unbind(1)):
            new = step(projected, state, r, b.chunk(2)[1])
            is_token = mask[:, position, None]
            state = tuple(torch.where(is_token, part, before) for part, before in zip(new, state, strict=True))
            steps.append(state[0].masked_fill(~is_token, 0.0))
        y = torch.stack(steps, dim=1)
        outputs.append(reverse_sequences(y, mask) if direction else y)
        finals.append(list(state))
    return [torch.cat(outputs, dim=-1), *(torch.stack(parts) for parts in zip(*finals, strict=True))]


def _lstm_step(projected: Tensor, state: tuple[Tensor, ...], r: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    h, c = state
    i, o, f, g = (projected + F.linear(h, r, bias)).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


# where the reset gate of a GRU is; a linear one has candidates without tanh
RESET_AFTER, RESET_BEFORE, LINEAR = "reset-after", "reset-before", "linear"


def _gru_step(projected: Tensor, state: tuple[Tensor, ...], r: Tensor, bias: Tensor, *, form: str) -> tuple[Tensor, ...]:
    (h,), size = state, state[0].size(1)
    z, reset = (projected[:, : 2 * size] + F.linear(h, r[: 2 * size], bias[: 2 * size])).sigmoid().chunk(2, dim=-1)
    r, bias = r[2 * size :], bias[2 * size :]
    recurrent = F.linear(reset * h, r, bias) if form == RESET_BEFORE else reset * F.linear(h, r, bias)
    n = projected[:, 2 * size :] + recurrent
    return ((1 - z) * (n if form == LINEAR else n.tanh()) + z * h,)


def _rnn_step(projected: Tensor, state: tuple[Tensor, ...], r: Tensor, bias: Tensor, *, activation: str) -> tuple[Tensor, ...]:
    return (NONLINEARITIES[activation](projected + F.linear(state[0], r, bias)),)


@torch.library.custom_op("weft::lstm", mutates_args=())
def lstm(x: Tensor, lengths: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs and the final h and c of an LSTM with gates in the order i, o, f, g; x (B, T, I), lengths (B,)."""
    y, h, c = _run(_lstm_step, x, lengths, (h, c), (w, r, b))
    return y, h, c


@torch.library.custom_op("weft::gru", mutates_args=())
def gru(x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """The outputs and the final h of a GRU with gates in the order z, r, n."""
    y, h = _run(partial(_gru_step, form=form), x, lengths, (h,), (w, r, b))
    return y, h


@torch.library.custom_op("weft::rnn", mutates_args=())
def rnn(x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The outputs and the final h of an Elman RNN."""
    y, h = _run(partial(_rnn_step, activation=activation), x, lengths, (h,), (w, r, b))
    return y, h


def _empty_output(x: Tensor, h: Tensor) -> Tensor:
    return x.new_empty(x.size(0), x.size(1), h.size(0) * h.size(2))


@lstm.register_fake
def _lstm_shapes(
    x: Tensor, lengths: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_output(x, h), torch.empty_like(h), torch.empty_like(c)


@gru.register_fake
def _gru_shapes(x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, form: str) -> tuple[Tensor, Tensor]:
    return _empty_output(x, h), torch.empty_like(h)


@rnn.register_fake
def _rnn_shapes(
    x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    return _empty_output(x, h), torch.empty_like(h)


def translations() -> dict[Any, Callable[..., Any]]:
    """From our operators to functions that write those of ONNX, for torch.onnx.export."""
    from onnxscript import opset18

    op: Any = opset18  # its functions have types of tensors, but write nodes

    def common(x: Any, lengths: Any, r: Any) -> tuple[Any, Any, dict[str, Any]]:
        """The input with the time first, the lengths as ONNX expects them, and attributes."""
        attributes = {"hidden_size": r.shape[2], "direction": "forward" if r.shape[0] == 1 else "bidirectional"}
        return op.Transpose(x, perm=[1, 0, 2]), op.Cast(lengths, to=6), attributes

    def batch_first(y: Any) -> Any:
        """Outputs (T, N, B, D) as (B, T, N D)."""
        return op.Reshape(op.Transpose(y, perm=[2, 0, 1, 3]), op.Constant(value_ints=[0, 0, -1]))

    def onnx_lstm(x: Any, lengths: Any, h: Any, c: Any, w: Any, r: Any, b: Any) -> tuple[Any, Any, Any]:
        steps, sizes, attributes = common(x, lengths, r)
        y, h, c = op.LSTM(steps, w, r, b, sizes, h, c, **attributes)
        return batch_first(y), h, c

    def onnx_gru(x: Any, lengths: Any, h: Any, w: Any, r: Any, b: Any, form: str) -> tuple[Any, Any]:
        steps, sizes, attributes = common(x, lengths, r)
        if form == LINEAR:
            attributes["activations"] = ["Sigmoid", "Affine"] * r.shape[0]
            attributes |= {"activation_alpha": [1.0] * r.shape[0], "activation_beta": [0.0] * r.shape[0]}
        y, h = op.GRU(steps, w, r, b, sizes, h, linear_before_reset=int(form != RESET_BEFORE), **attributes)
        return batch_first(y), h

    def onnx_rnn(x: Any, lengths: Any, h: Any, w: Any, r: Any, b: Any, activation: str) -> tuple[Any, Any]:
        steps, sizes, attributes = common(x, lengths, r)
        y, h = op.RNN(steps, w, r, b, sizes, h, activations=[activation.capitalize()] * r.shape[0], **attributes)
        return batch_first(y), h

    ops: Any = torch.ops.weft
    return {ops.lstm.default: onnx_lstm, ops.gru.default: onnx_gru, ops.rnn.default: onnx_rnn}


# ---- the modules that call them


def _onnx_weights(cell: nn.RNNBase, order: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """w, r and b of one direction, with the gates of torch in another order."""
    chunks = [part.detach().chunk(len(order)) for part in cell.all_weights[0]]
    w, r, *biases = (torch.cat([part[gate] for gate in order]) for part in chunks)
    return w, r, torch.cat(biases)


class RecurrentOperator(nn.Module):
    """A recurrent layer, or two that read in opposite directions, as one operator."""

    w: Tensor
    r: Tensor
    b: Tensor

    def __init__(self, w: Tensor, r: Tensor, b: Tensor) -> None:
        super().__init__()
        for name, tensor in (("w", w), ("r", r), ("b", b)):
            self.register_buffer(name, tensor.detach()[None].clone())

    def join(self, backward: RecurrentOperator) -> RecurrentOperator:
        """This layer, and one of the same type that reads backward."""
        self.w, self.r, self.b = (
            torch.cat(pair) for pair in ((self.w, backward.w), (self.r, backward.r), (self.b, backward.b))
        )
        return self

    def lengths(self, x: Tensor, token_mask: Tensor | None) -> Tensor:
        """The number of tokens of each row, (B,)."""
        if token_mask is None:
            return torch.full_like(x[:, 0, 0], x.size(1), dtype=torch.long)
        return token_mask.sum(1)

    def initial(self, x: Tensor, state: Tensor | None) -> Tensor:
        """A state (B, D) as (1, B, D); zeros (N, B, D) if there is none."""
        return x.new_zeros(self.r.size(0), x.size(0), self.r.size(2)) if state is None else state[None]


def _final(h: Tensor) -> Tensor:
    """A state (N, B, D) as (B, N D)."""
    return h.transpose(0, 1).flatten(1)


class LSTMOperator(RecurrentOperator):
    def __init__(self, layer: LSTM) -> None:
        super().__init__(*_onnx_weights(layer.cell, (0, 3, 1, 2)))  # torch has i, f, g, o; ONNX i, o, f, g

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = (self.initial(x, part) for part in ((None, None) if state is None else state))
        y, h, c = lstm(x, self.lengths(x, token_mask), h, c, self.w, self.r, self.b)
        return y, (_final(h), _final(c))


class GRUOperator(RecurrentOperator):
    form = RESET_AFTER

    def __init__(self, layer: GRU) -> None:
        super().__init__(*_onnx_weights(layer.cell, (1, 0, 2)))  # torch has r, z, n; ONNX z, r, n

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        lengths, h = self.lengths(x, token_mask), self.initial(x, state)
        y, h = gru(x, lengths, h, self.w, self.r, self.b, self.form)
        return y, _final(h)


class ResetBeforeGRUOperator(GRUOperator):
    form = RESET_BEFORE

    def __init__(self, layer: ResetBeforeGRU) -> None:
        sign = torch.ones(3 * layer.dim)
        sign[: layer.dim] = -1.0  # of the update gate u, which is 1 - z
        bias = layer.input_proj.bias.detach() * sign
        r = torch.cat([layer.gates.weight, layer.candidate.weight]).detach() * sign[:, None]
        w, b = layer.input_proj.weight.detach() * sign[:, None], torch.cat([bias, torch.zeros_like(bias)])
        RecurrentOperator.__init__(self, w, r, b)


class LinearGRUOperator(GRUOperator):
    """A GRU without recurrent weights and without tanh; U of the update gate and the candidates, (2 D, I), with its bias."""

    form = LINEAR

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        size = len(weight) // 2
        w, b = weight.new_zeros(3 * size, weight.size(1)), weight.new_zeros(6 * size)
        w[:size], w[2 * size :] = -weight[:size], weight[size:]  # ONNX has the weight of the old state, 1 - z
        b[:size], b[2 * size : 3 * size] = -bias[:size], bias[size:]
        RecurrentOperator.__init__(self, w, weight.new_zeros(3 * size, size), b)


class MinLSTMOperator(GRUOperator):
    """A linear GRU over the candidates and the logits of the update gate, which come from those of two gates."""

    form = LINEAR

    def __init__(self, layer: MinLSTM) -> None:
        size = layer.input_proj.out_features // 3
        scan = LinearGRUOperator(torch.eye(2 * size), torch.zeros(2 * size))
        RecurrentOperator.__init__(self, scan.w[0], scan.r[0], scan.b[0])
        self.projections = nn.ModuleList([layer.input_proj])  # of each direction

    def join(self, backward: RecurrentOperator) -> RecurrentOperator:
        """Each direction ignores the inputs of the other."""
        self.projections.extend(cast(Self, backward).projections)
        width = self.w.size(-1)
        self.w, backward.w = F.pad(self.w, (0, width)), F.pad(backward.w, (width, 0))
        return super().join(backward)

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        inputs = list[Tensor]()
        for project in self.projections:
            gates, candidates = project(x).tensor_split((2 * self.r.size(2),), dim=-1)
            inputs += [update_logits(gates, 2), candidates]
        return super().forward(torch.cat(inputs, dim=-1), state, token_mask)


class RNNOperator(RecurrentOperator):
    def __init__(self, layer: RNN) -> None:
        super().__init__(*_onnx_weights(layer.cell, (0,)))
        self.activation = layer.nonlinearity

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        lengths, h = self.lengths(x, token_mask), self.initial(x, state)
        y, h = rnn(x, lengths, h, self.w, self.r, self.b, self.activation)
        return y, _final(h)


def join_directions(layers: Bidirectional) -> nn.Module:
    """Two operators as one; other mixers stay as they are."""
    forward, backward = layers.forward_mixer, layers.backward_mixer
    if isinstance(forward, RecurrentOperator) and isinstance(backward, RecurrentOperator):
        return forward.join(backward)
    return layers
