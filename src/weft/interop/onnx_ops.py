"""Modules in a form that can be exported to ONNX.

torch.onnx unrolls nn.LSTM, nn.GRU and nn.RNN to the length of its example, and the exported file fails at every other length.
Here each is one operator, `weft::lstm` and so on, that becomes the operator of ONNX with the same name. `exportable` replaces
the modules of a copy of a model; their outputs are equal, except on padding.

Shapes: B batch size, T sequence length, D hidden size, I input size, N directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.interop.onnx_speech import TracedSpeechFront
from weft.models.encoder import EncoderInput
from weft.models.tagger import CharEncoder
from weft.nn.attention import SelfAttention
from weft.nn.bidirectional import Bidirectional, reverse_sequences
from weft.nn.cross_attention import AdditiveAttention
from weft.nn.experts import Experts, Router, Routing, every_expert
from weft.nn.recurrent import GRU, LSTM, NONLINEARITIES, RNN, ResetBeforeGRU
from weft.nn.speech_front import SpeechFront
from weft.nn.state import KVCache

# ---- recurrent operators. Weights are as in ONNX, for N directions (1 or 2) and G gates: w (N, G D, I), r (N, G D, D) and
# b (N, 2 G D); states are (N, B, D), outputs (B, T, N D), 0 on padding.

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


def _gru_step(
    projected: Tensor, state: tuple[Tensor, ...], r: Tensor, bias: Tensor, *, reset_after: bool
) -> tuple[Tensor, ...]:
    (h,), size = state, state[0].size(1)
    z, reset = (projected[:, : 2 * size] + F.linear(h, r[: 2 * size], bias[: 2 * size])).sigmoid().chunk(2, dim=-1)
    r, bias = r[2 * size :], bias[2 * size :]
    recurrent = reset * F.linear(h, r, bias) if reset_after else F.linear(reset * h, r, bias)
    n = (projected[:, 2 * size :] + recurrent).tanh()
    return ((1 - z) * n + z * h,)


def _rnn_step(projected: Tensor, state: tuple[Tensor, ...], r: Tensor, bias: Tensor, *, activation: str) -> tuple[Tensor, ...]:
    return (NONLINEARITIES[activation](projected + F.linear(state[0], r, bias)),)


@torch.library.custom_op("weft::lstm", mutates_args=())
def lstm(x: Tensor, lengths: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs and the final h and c of an LSTM with gates in the order i, o, f, g; x (B, T, I), lengths (B,)."""
    y, h, c = _run(_lstm_step, x, lengths, (h, c), (w, r, b))
    return y, h, c


@torch.library.custom_op("weft::gru", mutates_args=())
def gru(x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, reset_after: bool) -> tuple[Tensor, Tensor]:
    """The outputs and the final h of a GRU with gates in the order z, r, n; `reset_after` the matrix product."""
    y, h = _run(partial(_gru_step, reset_after=reset_after), x, lengths, (h,), (w, r, b))
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
def _gru_shapes(
    x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, reset_after: bool
) -> tuple[Tensor, Tensor]:
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

    def onnx_gru(x: Any, lengths: Any, h: Any, w: Any, r: Any, b: Any, reset_after: bool) -> tuple[Any, Any]:
        steps, sizes, attributes = common(x, lengths, r)
        y, h = op.GRU(steps, w, r, b, sizes, h, linear_before_reset=int(reset_after), **attributes)
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
    reset_after = True

    def __init__(self, layer: GRU) -> None:
        super().__init__(*_onnx_weights(layer.cell, (1, 0, 2)))  # torch has r, z, n; ONNX z, r, n

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        lengths, h = self.lengths(x, token_mask), self.initial(x, state)
        y, h = gru(x, lengths, h, self.w, self.r, self.b, self.reset_after)
        return y, _final(h)


class ResetBeforeGRUOperator(GRUOperator):
    reset_after = False

    def __init__(self, layer: ResetBeforeGRU) -> None:
        sign = torch.ones(3 * layer.dim)
        sign[: layer.dim] = -1.0  # of the update gate u, which is 1 - z
        bias = layer.input_proj.bias.detach() * sign
        r = torch.cat([layer.gates.weight, layer.candidate.weight]).detach() * sign[:, None]
        w, b = layer.input_proj.weight.detach() * sign[:, None], torch.cat([bias, torch.zeros_like(bias)])
        RecurrentOperator.__init__(self, w, r, b)


class RNNOperator(RecurrentOperator):
    def __init__(self, layer: RNN) -> None:
        super().__init__(*_onnx_weights(layer.cell, (0,)))
        self.activation = layer.nonlinearity

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        lengths, h = self.lengths(x, token_mask), self.initial(x, state)
        y, h = rnn(x, lengths, h, self.w, self.r, self.b, self.activation)
        return y, _final(h)


def _join_directions(layers: Bidirectional) -> nn.Module:
    """Two operators as one; other mixers stay as they are."""
    forward, backward = layers.forward_mixer, layers.backward_mixer
    if isinstance(forward, RecurrentOperator) and isinstance(backward, RecurrentOperator):
        return forward.join(backward)
    return layers


# ---- other modules whose Python code depends on sizes


class TracedAttention(nn.Module):
    """Self-attention that always has a mask and never trims its cache: both depend on sizes, which a graph does not know."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, state: KVCache | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, KVCache]:
        attention = self.attention
        q, k, v = attention.to_qkv(x).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        positions = torch.arange(x.size(1), device=x.device).expand(x.size(0), -1)
        if state is not None:
            positions = positions + next_position(state.positions)
        q, k = (attention.positions.rotate(attention.qk_norm(part), positions) for part in (q, k))
        key_positions = positions if token_mask is None else torch.where(token_mask, positions, -1)
        if state is not None:
            k, v = torch.cat([state.keys, k], dim=2), torch.cat([state.values, v], dim=2)
            key_positions = torch.cat([state.positions, key_positions], dim=1)
        mask = attention._mask(positions, key_positions)
        bias = attention.positions.attention_bias(q, positions, key_positions)
        if bias is not None:
            mask = bias.masked_fill(~mask, float("-inf"))
        y = attention.attend(q, k, v, mask, False)
        return attention.to_out(y.transpose(1, 2).flatten(2)), KVCache(k, v, key_positions)

    def init_state(self, memory: Any) -> None:
        """No state: self-attention does not depend on the source."""


def next_position(positions: Tensor) -> Tensor:
    """The position after those in a cache (B, C), which may have no columns: (B, 1)."""
    none = positions.new_full((positions.size(0), 1), -1)
    return torch.cat([positions, none], dim=1).amax(1, keepdim=True) + 1


class TracedCharEncoder(nn.Module):
    """A character encoder that encodes every word, not each distinct word once."""

    def __init__(self, encoder: CharEncoder) -> None:
        super().__init__()
        self.encoder, self.pooling, self.out_proj = encoder.encoder, encoder.pooling, encoder.out_proj

    def forward(self, char_ids: Tensor, token_mask: Tensor) -> Tensor:
        text = EncoderInput(char_ids.flatten(0, 1), token_mask.flatten(0, 1))
        vectors: Tensor = self.out_proj(self.pooling(*self.encoder(text)))
        return vectors.view(*char_ids.shape[:2], -1)


class TracedRouter(nn.Module):
    """A router without autocast, which a graph does not have."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self.num_experts, self.experts_per_token, self.linear = router.num_experts, router.experts_per_token, router.linear

    def forward(self, x: Tensor) -> Routing:
        probs = F.linear(x, self.linear.weight).softmax(-1)
        gates, experts = probs.topk(self.experts_per_token, dim=-1)
        return Routing(experts, gates / gates.sum(-1, keepdim=True) if self.experts_per_token > 1 else gates, probs)


class TracedExperts(nn.Module):
    """Experts without grouped matrix products: every expert computes every token."""

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, x: Tensor, routing: Routing, token_mask: Tensor | None = None) -> Tensor:
        return every_expert(self.experts, x, routing, token_mask)


class TracedAdditiveAttention(nn.Module):
    """Additive attention that is not computed in chunks, whose number depends on sizes."""

    def __init__(self, attention: AdditiveAttention) -> None:
        super().__init__()
        self.weight = attention.weight

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> Tensor:
        scores = (q[..., None, :] + k[:, :, None]).tanh() @ self.weight
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


REPLACEMENTS: Mapping[type[nn.Module], Callable[[Any], nn.Module]] = {
    LSTM: LSTMOperator,
    GRU: GRUOperator,
    ResetBeforeGRU: ResetBeforeGRUOperator,
    RNN: RNNOperator,
    Bidirectional: _join_directions,
    SelfAttention: TracedAttention,
    AdditiveAttention: TracedAdditiveAttention,
    CharEncoder: TracedCharEncoder,
    Router: TracedRouter,
    Experts: TracedExperts,
    SpeechFront: TracedSpeechFront,
}


def exportable(model: nn.Module) -> nn.Module:
    """A copy of a model, in evaluation mode, whose modules can be exported."""
    copy = deepcopy(model).eval().requires_grad_(False)
    _replace(copy)
    return copy


def _replace(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        _replace(child)
        if (replacement := REPLACEMENTS.get(type(child))) is not None:
            setattr(module, name, replacement(child))
