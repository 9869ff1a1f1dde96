"""Input feeding of an LSTM in training, with few operations per position: the fast path of `StepwiseDecoder`.

An operation takes a few microseconds however small it is, and the positions of such a decoder follow one another. So the
products that need no earlier output are computed for all positions at once: before the loop the product with the embeddings,
after the loop the gradients of weights, keys and values, whose parts are collected in the backward pass of the positions.
Everything is computed in float32, also with autocast.

Shapes: B batch size, T positions, S source length, D hidden size, M hidden size of the memory, I input size, O output size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft.nn.linear import linear, product, weight_gradient


@runtime_checkable
class HasLSTMWeights(Protocol):
    """An LSTM."""

    def lstm_weights(self) -> list[Tensor]:
        """U (4D, I), W (4D, D) and their two biases (4D,): input gate, forget gate, g and output gate."""


LSTMState = tuple[Tensor, Tensor]  # h and c, (B, D) each
Uses = list[tuple[Tensor, ...]]  # what each position leaves for the gradient of a shared tensor


class _SharedLinear(torch.autograd.Function):
    """Weight (O, I) and bias (O,) as they are. The gradient is that of all positions, each of which adds its input and the
    gradient of its output to `uses`."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, uses: Uses) -> tuple[Tensor, Tensor]:
        ctx.uses = uses
        ctx.set_materialize_grads(False)
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_weight: None, grad_bias: None) -> tuple[Tensor | None, ...]:
        if not ctx.uses:
            return None, None, None
        inputs, gradients = (torch.cat(parts) for parts in zip(*ctx.uses, strict=True))
        ctx.uses.clear()
        return weight_gradient(gradients, inputs), gradients.sum(0), None


class _LinearAtPosition(torch.autograd.Function):
    """x W^T + b, for x (B, I)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, uses: Uses) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.uses = uses
        return product(x, weight, bias, repeats=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.uses.append((x, grad))
        return product(grad, weight.t(), repeats=True), None, None, None


class _SharedMemory(torch.autograd.Function):
    """Keys (B, S, D) and values (B, S, M) as they are, with gradients like `_SharedLinear`."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, values: Tensor, uses: Uses) -> tuple[Tensor, Tensor]:
        ctx.uses = uses
        ctx.set_materialize_grads(False)
        return keys.view_as(keys), values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_keys: None, grad_values: None) -> tuple[Tensor | None, ...]:
        if not ctx.uses:
            return None, None, None
        queries, grad_scores, probs, gradients = (torch.cat(parts, dim=1) for parts in zip(*ctx.uses, strict=True))
        ctx.uses.clear()
        return grad_scores.transpose(1, 2) @ queries, probs.transpose(1, 2) @ gradients, None


class _AttentionAtPosition(torch.autograd.Function):
    """softmax(q k^T + mask) v, for a scaled query (B, 1, D)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, uses: Uses) -> Tensor:
        probs = torch.baddbmm(mask, query, keys.transpose(1, 2)).softmax(-1)
        ctx.save_for_backward(query, keys, values, probs)
        ctx.uses = uses
        return torch.bmm(probs, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, probs = ctx.saved_tensors
        grad_probs = torch.bmm(grad, values.transpose(1, 2))
        grad_scores = torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
        ctx.uses.append((query, grad_scores, probs, grad))
        return torch.bmm(grad_scores, keys), None, None, None, None


class AdditiveUses:
    """What the positions leave for the gradients of additive attention: sums, and parts for the values."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # (B, S, D)
        self.weight: Tensor | None = None  # (D,)
        self.values: Uses = []

    def take(self) -> tuple[Tensor | None, ...]:
        """The gradients of keys, values and weight; the next backward pass starts anew."""
        probs, gradients = (torch.cat(parts, dim=1) for parts in zip(*self.values, strict=True))
        taken = self.keys, probs.transpose(1, 2) @ gradients, self.weight
        self.keys, self.weight = None, None
        self.values.clear()
        return taken

    def add(self, keys: Tensor, weight: Tensor) -> None:
        self.keys = keys if self.keys is None else self.keys.add_(keys)
        self.weight = weight if self.weight is None else self.weight.add_(weight)


class _SharedAdditive(torch.autograd.Function):
    """Keys (B, S, D), values (B, S, M) and weight (D,) as they are, with gradients like `_SharedLinear`."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, values: Tensor, weight: Tensor, uses: AdditiveUses) -> tuple[Tensor, ...]:
        ctx.uses = uses
        ctx.set_materialize_grads(False)
        return keys.view_as(keys), values.view_as(values), weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_keys: None, grad_values: None, grad_weight: None) -> tuple[Tensor | None, ...]:
        return (*ctx.uses.take(), None) if ctx.uses.values else (None, None, None, None)


class _AdditiveAtPosition(torch.autograd.Function):
    """softmax(w . tanh(q + k) + mask) v, for a query (B, 1, D)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, weight: Tensor, mask: Tensor, uses: AdditiveUses
    ) -> Tensor:
        hidden = (query + keys).tanh_()
        probs = ((hidden @ weight)[:, None] + mask).softmax(-1)
        ctx.save_for_backward(hidden, values, weight, probs)
        ctx.uses = uses
        return torch.bmm(probs, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, values, weight, probs = ctx.saved_tensors
        grad_probs = torch.bmm(grad, values.transpose(1, 2))
        grad_scores = torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
        grad_sums = torch.ops.aten.tanh_backward(grad_scores.transpose(1, 2) * weight, hidden)
        ctx.uses.values.append((probs, grad))
        ctx.uses.add(grad_sums, torch.mv(hidden.flatten(0, 1).t(), grad_scores.flatten()))
        return grad_sums.sum(1, keepdim=True), None, None, None, None, None


def shared_linear(weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
    """A linear layer (B, I) to (B, O) for many positions; the gradients of its weights are computed once."""
    uses: Uses = []
    shared: Any = _SharedLinear.apply(weight, bias, uses)  # type: ignore[no-untyped-call]

    def linear(x: Tensor) -> Tensor:
        y: Tensor = _LinearAtPosition.apply(x, *shared, uses)  # type: ignore[no-untyped-call]
        return y

    return linear


def _additive_mask(token_mask: Tensor, keys: Tensor) -> Tensor:
    """(B, 1, S): 0 on tokens, minus infinity on padding, in the dtype of the keys."""
    return torch.zeros_like(keys[:, None, :, 0]).masked_fill(~token_mask[:, None], float("-inf"))


def shared_attention(keys: Tensor, values: Tensor, token_mask: Tensor, scale: float) -> Callable[[Tensor], Tensor]:
    """Attention from a query (B, D) to keys (B, S, D) and values (B, S, M) for many positions: (B, M)."""
    uses: Uses = []
    shared: Any = _SharedMemory.apply(keys, values, uses)  # type: ignore[no-untyped-call]
    mask = _additive_mask(token_mask, keys)

    def attend(query: Tensor) -> Tensor:
        scaled = query[:, None] if scale == 1.0 else query[:, None] * scale
        context: Tensor = _AttentionAtPosition.apply(scaled, *shared, mask, uses)  # type: ignore[no-untyped-call]
        return context.squeeze(1)

    return attend


def shared_additive_attention(
    keys: Tensor, values: Tensor, token_mask: Tensor, weight: Tensor, to_q: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """`shared_attention` with the additive score, for queries that `to_q` projects."""
    uses = AdditiveUses()
    shared: Any = _SharedAdditive.apply(keys, values, weight, uses)  # type: ignore[no-untyped-call]
    mask = _additive_mask(token_mask, keys)

    def attend(query: Tensor) -> Tensor:
        projected = to_q(query)[:, None]
        context: Tensor = _AdditiveAtPosition.apply(projected, *shared, mask, uses)  # type: ignore[no-untyped-call]
        return context.squeeze(1)

    return attend


def lstm_step(input_gates: Tensor, hidden_gates: Tensor, c: Tensor) -> LSTMState:
    """h and c after a position, from two summands of its gates (B, 4D): input, forget, candidate and output gate."""
    if c.device.type == "cuda":  # the kernel of torch.lstm_cell, which there is for GPUs only
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(input_gates, hidden_gates, c)
        return h, c
    gate_i, gate_f, candidate, gate_o = (input_gates + hidden_gates).chunk(4, dim=-1)
    c = gate_f.sigmoid() * c + gate_i.sigmoid() * candidate.tanh()
    return gate_o.sigmoid() * c.tanh(), c


class InputFeedingParts(NamedTuple):
    """The modules of a decoder with input feeding: LSTMs with dropout above each, attention, and the layer above it."""

    weights: Sequence[list[Tensor]]  # of the LSTMs, see `HasLSTMWeights`
    dropouts: Sequence[nn.Module]
    join: nn.Linear  # from (context, h) to the output
    output_dropout: nn.Module
    scale: float = 1.0  # of the attention scores
    to_q: nn.Linear | None = None  # additive attention: projects queries
    score_weight: Tensor | None = None  # additive attention: w

    def attention(self, keys: Tensor, values: Tensor, token_mask: Tensor) -> Callable[[Tensor], Tensor]:
        if self.to_q is None or self.score_weight is None:
            return shared_attention(keys, values, token_mask, self.scale)
        to_q = shared_linear(self.to_q.weight, self.to_q.bias)
        return shared_additive_attention(keys, values, token_mask, self.score_weight, to_q)

    def run(self, x: Tensor, states: Sequence[LSTMState], source: Sequence[Tensor], previous: Tensor) -> Any:
        """Outputs (B, T, D) and the state of each LSTM, from embeddings (B, T, I), the initial states, keys, values and token
        mask of the source, and the output before the first (B, D)."""
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
            keys, values, token_mask = source
            attend = self.attention(keys.to(dtype), values.to(dtype), token_mask)
            first = self.weights[0][0]
            # (T, B, 4D): the part of the first gates that needs no earlier output
            embedded = linear(x.to(dtype).transpose(0, 1), first[:, : x.size(2)])
            gates = [
                shared_linear(torch.cat([first[:, x.size(2) :] if index == 0 else u, w], dim=1), bias_u + bias_w)
                for index, (u, w, bias_u, bias_w) in enumerate(self.weights)
            ]
            join, zeros = shared_linear(self.join.weight, self.join.bias), torch.zeros_like(embedded[0])
            hidden, outputs = [(h.to(dtype), c.to(dtype)) for h, c in states], []
            previous = previous.to(dtype)
            for embedded_gates in embedded.unbind(0):
                y, input_gates = previous, embedded_gates
                for index, dropout in enumerate(self.dropouts):
                    h, c = hidden[index]
                    hidden[index] = lstm_step(input_gates, gates[index](torch.cat([y, h], dim=1)), c)
                    y, input_gates = dropout(hidden[index][0]), zeros
                previous = self.output_dropout(join(torch.cat([attend(y), y], dim=1)).tanh())
                outputs.append(previous)
            return torch.stack(outputs, dim=1), hidden
