"""Modules in a form that can be exported to ONNX.

torch.onnx unrolls nn.LSTM, nn.GRU and nn.RNN to the length of its example, and the exported file fails at every other length.
Here each is one operator, `weft::lstm` and so on, that becomes the operator of ONNX with the same name. `exportable` replaces
the modules of a copy of a model; their outputs are equal, except on padding.

Shapes: B batch size, T sequence length, D hidden size, I input size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.models.encoder import EncoderInput
from weft.models.tagger import CharEncoder
from weft.nn.attention import SelfAttention
from weft.nn.cross_attention import AdditiveAttention
from weft.nn.experts import Experts, Router, Routing, every_expert
from weft.nn.recurrent import GRU, LSTM, NONLINEARITIES, RNN, ResetBeforeGRU
from weft.nn.state import KVCache

# ---- recurrent operators, with weights as ONNX has them: w (1, G D, I), r (1, G D, D) and b (1, 2 G D) for G gates


def _steps(x: Tensor, lengths: Tensor, w: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The projected input (B, G D) of each position, and whether it is a token, (B, 1)."""
    projected = F.linear(x, w[0], b[0].chunk(2)[0]).unbind(1)
    return [(step, (position < lengths)[:, None]) for position, step in enumerate(projected)]


def _outputs(states: list[Tensor], lengths: Tensor) -> Tensor:
    """Outputs (B, T, D), 0 on padding, as ONNX defines them."""
    y = torch.stack(states, dim=1)
    return y.masked_fill((torch.arange(y.size(1)) >= lengths[:, None])[..., None], 0.0)


@torch.library.custom_op("weft::lstm", mutates_args=())
def lstm(x: Tensor, lengths: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (B, T, D) and the final h and c (B, D) of an LSTM with gates in the order i, o, f, g; lengths (B,)."""
    states = []
    for projected, is_token in _steps(x, lengths, w, b):
        i, o, f, g = (projected + F.linear(h, r[0], b[0].chunk(2)[1])).chunk(4, dim=-1)
        new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h, c = torch.where(is_token, o.sigmoid() * new_c.tanh(), h), torch.where(is_token, new_c, c)
        states.append(h)
    return _outputs(states, lengths), h.clone(), c.clone()


@torch.library.custom_op("weft::gru", mutates_args=())
def gru(x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, reset_after: bool) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, D) and the final h (B, D) of a GRU with gates in the order z, r, n; `reset_after` the matrix product."""
    bias, states, size = b[0].chunk(2)[1], list[Tensor](), h.size(1)
    for projected, is_token in _steps(x, lengths, w, b):
        z, reset = (projected[:, : 2 * size] + F.linear(h, r[0, : 2 * size], bias[: 2 * size])).sigmoid().chunk(2, dim=-1)
        if reset_after:
            recurrent = reset * F.linear(h, r[0, 2 * size :], bias[2 * size :])
        else:
            recurrent = F.linear(reset * h, r[0, 2 * size :], bias[2 * size :])
        n = (projected[:, 2 * size :] + recurrent).tanh()
        h = torch.where(is_token, (1 - z) * n + z * h, h)
        states.append(h)
    return _outputs(states, lengths), h.clone()


@torch.library.custom_op("weft::rnn", mutates_args=())
def rnn(x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, D) and the final h (B, D) of an Elman RNN."""
    states = []
    for projected, is_token in _steps(x, lengths, w, b):
        h = torch.where(is_token, NONLINEARITIES[activation](projected + F.linear(h, r[0], b[0].chunk(2)[1])), h)
        states.append(h)
    return _outputs(states, lengths), h.clone()


@lstm.register_fake
def _lstm_shapes(
    x: Tensor, lengths: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.size(0), x.size(1), h.size(1)), torch.empty_like(h), torch.empty_like(c)


@gru.register_fake
def _gru_shapes(
    x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, reset_after: bool
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.size(0), x.size(1), h.size(1)), torch.empty_like(h)


@rnn.register_fake
def _rnn_shapes(
    x: Tensor, lengths: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.size(0), x.size(1), h.size(1)), torch.empty_like(h)


def translations() -> dict[Any, Callable[..., Any]]:
    """From our operators to functions that write those of ONNX, for torch.onnx.export."""
    from onnxscript import opset18

    op: Any = opset18  # its functions have types of tensors, but write nodes

    def sequence(x: Any, h: Any) -> tuple[Any, Any]:
        return op.Transpose(x, perm=[1, 0, 2]), op.Unsqueeze(h, [0])  # ONNX has the time first, and an axis of directions

    def batch_first(y: Any) -> Any:
        return op.Transpose(op.Squeeze(y, [1]), perm=[1, 0, 2])

    def onnx_lstm(x: Any, lengths: Any, h: Any, c: Any, w: Any, r: Any, b: Any) -> tuple[Any, Any, Any]:
        (steps, first), size = sequence(x, h), r.shape[2]
        y, h, c = op.LSTM(steps, w, r, b, op.Cast(lengths, to=6), first, op.Unsqueeze(c, [0]), hidden_size=size)
        return batch_first(y), op.Squeeze(h, [0]), op.Squeeze(c, [0])

    def onnx_gru(x: Any, lengths: Any, h: Any, w: Any, r: Any, b: Any, reset_after: bool) -> tuple[Any, Any]:
        (steps, first), size = sequence(x, h), r.shape[2]
        length = op.Cast(lengths, to=6)
        y, h = op.GRU(steps, w, r, b, length, first, hidden_size=size, linear_before_reset=int(reset_after))
        return batch_first(y), op.Squeeze(h, [0])

    def onnx_rnn(x: Any, lengths: Any, h: Any, w: Any, r: Any, b: Any, activation: str) -> tuple[Any, Any]:
        (steps, first), size = sequence(x, h), r.shape[2]
        length = op.Cast(lengths, to=6)
        y, h = op.RNN(steps, w, r, b, length, first, hidden_size=size, activations=[activation.capitalize()])
        return batch_first(y), op.Squeeze(h, [0])

    ops: Any = torch.ops.weft
    return {ops.lstm.default: onnx_lstm, ops.gru.default: onnx_gru, ops.rnn.default: onnx_rnn}


# ---- the modules that call them


def _reordered(weight: Tensor, order: tuple[int, ...], gates: int) -> Tensor:
    """The gates of a weight (G D, ...) in another order."""
    chunks = weight.detach().chunk(gates)
    return torch.cat([chunks[index] for index in order])


class RecurrentOperator(nn.Module):
    """The weights of a recurrent layer as ONNX has them."""

    w: Tensor
    r: Tensor
    b: Tensor

    def __init__(self, w: Tensor, r: Tensor, b: Tensor) -> None:
        super().__init__()
        self.dim = r.size(1)
        for name, tensor in (("w", w), ("r", r), ("b", b)):
            self.register_buffer(name, tensor.detach()[None].clone())

    def lengths(self, x: Tensor, token_mask: Tensor | None) -> Tensor:
        """The number of tokens of each row, (B,)."""
        if token_mask is None:
            return torch.full_like(x[:, 0, 0], x.size(1), dtype=torch.long)
        return token_mask.sum(1)

    def zeros(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.size(0), self.dim)


class LSTMOperator(RecurrentOperator):
    def __init__(self, layer: LSTM) -> None:
        w, r, *biases = layer.cell.all_weights[0]
        order = (0, 3, 1, 2)  # torch has i, f, g, o; ONNX i, o, f, g
        w, r, b = (_reordered(part, order, 4) for part in (w, r, torch.stack(biases, dim=1)))
        super().__init__(w, r, b.T.flatten())

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = (self.zeros(x), self.zeros(x)) if state is None else state
        y, h, c = lstm(x, self.lengths(x, token_mask), h, c, self.w, self.r, self.b)
        return y, (h, c)


class GRUOperator(RecurrentOperator):
    def __init__(self, layer: GRU) -> None:
        w, r, *biases = layer.cell.all_weights[0]
        order = (1, 0, 2)  # torch has r, z, n; ONNX z, r, n
        w, r, b = (_reordered(part, order, 3) for part in (w, r, torch.stack(biases, dim=1)))
        super().__init__(w, r, b.T.flatten())

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.zeros(x) if state is None else state
        y, h = gru(x, self.lengths(x, token_mask), h, self.w, self.r, self.b, True)
        return y, h


class ResetBeforeGRUOperator(RecurrentOperator):
    def __init__(self, layer: ResetBeforeGRU) -> None:
        # the update gate u is 1 - z: its weights change their sign
        sign = torch.ones(3 * layer.dim)
        sign[: layer.dim] = -1.0
        bias = layer.input_proj.bias.detach() * sign
        r = torch.cat([layer.gates.weight, layer.candidate.weight]).detach() * sign[:, None]
        super().__init__(layer.input_proj.weight.detach() * sign[:, None], r, torch.cat([bias, torch.zeros_like(bias)]))

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.zeros(x) if state is None else state
        y, h = gru(x, self.lengths(x, token_mask), h, self.w, self.r, self.b, False)
        return y, h


class RNNOperator(RecurrentOperator):
    def __init__(self, layer: RNN) -> None:
        w, r, *biases = layer.cell.all_weights[0]
        super().__init__(w, r, torch.cat([*biases]))
        self.activation = layer.nonlinearity

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.zeros(x) if state is None else state
        y, h = rnn(x, self.lengths(x, token_mask), h, self.w, self.r, self.b, self.activation)
        return y, h


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
    SelfAttention: TracedAttention,
    AdditiveAttention: TracedAdditiveAttention,
    CharEncoder: TracedCharEncoder,
    Router: TracedRouter,
    Experts: TracedExperts,
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
