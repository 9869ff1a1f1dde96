"""Attention from a decoder to the memory: multi-head in a Transformer, single-head around recurrent layers.

The source is part of the state: `init_state(memory)` computes keys and values once per source, and every step reads them.
In a beam search, K hypotheses share one source. They become K queries of one row, so that keys are not copied per hypothesis.

Shapes: B batch size, A sources (B outside of beam search), T queries, S source length, D hidden size, M hidden size of the
memory, H heads, E head size.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.nn.attention import ScaledDotProductAttention
from weft.nn.attention_step import CrossAttentionStep
from weft.nn.decode_step import MixerStep
from weft.nn.dropout import IntegerDropout
from weft.nn.input_feeding import HasLSTMWeights, InputFeedingParts
from weft.nn.linear import OneDNNLinear, is_linear
from weft.nn.memory import Memory
from weft.nn.stack import Stack
from weft.nn.state import SharedState, tree_leaves, where

SourceKeysValues = SharedState  # keys (A, H, S, E), values (A, H, S, E or M), token mask (A, S)
MAX_ELEMENTS = 1 << 22  # elements of tanh(q + k) computed at once: 16 MB fit the CPU cache


@runtime_checkable
class AttendsToMemory(Protocol):
    """Attention to a memory."""

    to_source: bool  # True: one attention weight per source position; False: it sees the summary only


class CrossAttention(nn.Module):
    """Multi-head cross-attention (Vaswani et al. 2017): queries from the decoder, keys and values from the memory.

    A mixer whose state is the keys and values. With `summary_only`, it sees only the summary of the memory.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        head_dim: int | None = None,
        memory_size: int | None = None,
        qk_norm: nn.Module | None = None,
        summary_only: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        head_dim = head_dim or dim // num_heads
        self.num_heads, self.summary_only = num_heads, summary_only
        self.to_source = not summary_only
        self.qk_norm = qk_norm or nn.Identity()  # applied to queries and keys
        self.to_q = OneDNNLinear(dim, num_heads * head_dim)
        self.to_kv = OneDNNLinear(memory_size or dim, 2 * num_heads * head_dim)
        self.to_out = OneDNNLinear(num_heads * head_dim, dim)
        self.attend = ScaledDotProductAttention(dropout)

    def init_state(self, memory: Memory) -> SourceKeysValues:
        if self.summary_only:
            memory = memory.summary_only()
        k, v = self.to_kv(memory.values).unflatten(-1, (2, self.num_heads, -1)).unbind(2)  # (A, S, H, E)
        return SharedState((self.qk_norm(k).transpose(1, 2), v.transpose(1, 2), memory.token_mask))

    def forward(self, x: Tensor, state: SourceKeysValues, token_mask: Tensor | None = None) -> tuple[Tensor, SourceKeysValues]:
        k, v, source_mask = state.parts
        # (B, T, D) -> (A, H, K * T, E): the hypotheses of one source become queries of one row
        q = self.to_q(x).view(k.size(0), -1, self.num_heads, k.size(-1)).transpose(1, 2)
        y = self.attend(self.qk_norm(q), k, v, source_mask[:, None, None, :], False)
        return self.to_out(y.transpose(1, 2).reshape(*x.shape[:2], -1)), state

    def lean_step(self) -> MixerStep:
        return CrossAttentionStep(self)


class AdditiveAttention(nn.Module):
    """softmax(w . tanh(q + k)) v (Bahdanau et al. 2015), for queries and keys that are already projected."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5))

    def weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> Tensor:
        """Attention weights, (B, 1, T, S)."""
        # computed in chunks of queries: T x S vectors at once would not fit the CPU cache
        chunk_size = max(1, MAX_ELEMENTS // k.numel())
        chunks = torch.split(q, chunk_size, dim=2)
        scores = [(chunk[..., None, :] + k[:, :, None]).tanh() @ self.weight.to(q.dtype) for chunk in chunks]
        return torch.cat(scores, dim=2).masked_fill(~mask, float("-inf")).softmax(-1)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> Tensor:
        return self.weights(q, k, v, mask, causal).to(v.dtype) @ v


class SourceAttention(nn.Module):
    """Single-head attention to the source: a_t = sum_s softmax_s(score(q_t, k_s)) k_s.

    Score functions (Luong et al. 2015, Bahdanau et al. 2015, Vaswani et al. 2017):

        dot             q . k
        scaled-dot      q . k / sqrt(D)
        multiplicative  q . W k
        additive        w . tanh(U q + W k), w of length attention_dim (default D)
    """

    def __init__(self, dim: int, *, score: str, memory_size: int, attention_dim: int | None = None) -> None:
        super().__init__()
        self.to_source = True
        is_dot, attention_dim = score in ("dot", "scaled-dot"), attention_dim or dim
        self.to_q = OneDNNLinear(dim, attention_dim) if score == "additive" else nn.Identity()
        self.to_k = nn.Identity() if is_dot else OneDNNLinear(memory_size, attention_dim, bias=False)
        self.attend: nn.Module = AdditiveAttention(attention_dim)
        self.scale = dim**-0.5 if score == "scaled-dot" else 1.0
        if score != "additive":
            self.attend = ScaledDotProductAttention(scale=self.scale)

    def score_weight(self) -> Tensor | None:
        """w of the additive score; None for the others."""
        return next(self.attend.parameters(), None)

    def init_state(self, memory: Memory) -> SourceKeysValues:
        return SharedState((self.to_k(memory.values)[:, None], memory.values[:, None], memory.token_mask))

    def forward(self, x: Tensor, state: SourceKeysValues) -> Tensor:
        """Queries (B, T, D) to context vectors (B, T, M)."""
        k, v, source_mask = state.parts
        q = self.to_q(x).reshape(k.size(0), 1, -1, k.size(-1))
        context: Tensor = self.attend(q, k, v, source_mask[:, None, None, :], False)
        return context.view(*x.shape[:2], -1)


class AttentionalOutput(nn.Module):
    """Attention after the recurrent step (Luong et al. 2015): the attentional hidden state.

        h~_t = tanh(W [a_t; h_t])

    A mixer for the top of a stack.
    """

    def __init__(self, attention: SourceAttention, dim: int, *, memory_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.join, self.dropout = attention, OneDNNLinear(memory_size + dim, dim), IntegerDropout(dropout)

    def init_state(self, memory: Memory) -> SourceKeysValues:
        return self.attention.init_state(memory)

    def forward(self, x: Tensor, state: SourceKeysValues, token_mask: Tensor | None = None) -> tuple[Tensor, SourceKeysValues]:
        return self.dropout(self.join(torch.cat([self.attention(x, state), x], dim=-1)).tanh()), state


def _top_hidden_state(state: Any) -> Tensor:
    """The hidden state of the topmost recurrent layer, (B, 1, D), from the state of a stack."""
    return tree_leaves(next(part for part in reversed(state[1]) if tree_leaves(part)))[0][:, None]


class AttentionBeforeStep(nn.Module):
    """Attention before the recurrent step (Bahdanau et al. 2015): h_{t-1} is the query, the step reads [x_t; a_t].

    With a gate, a linear layer from D to 1, it reads [x_t; sigmoid(gate(h_{t-1})) a_t] (Xu et al. 2015, 4.2.1).
    """

    def __init__(self, attention: SourceAttention, *, gate: nn.Linear | None = None) -> None:
        super().__init__()
        self.attention, self.gate = attention, gate

    def init_state(self, memory: Memory) -> SourceKeysValues:
        return self.attention.init_state(memory)

    def initial_output(self, state: Any) -> Tensor:
        """The first query: the initial hidden state of the topmost recurrent layer."""
        return _top_hidden_state(state)

    def step_input(self, x: Tensor, previous_output: Tensor, source: SourceKeysValues) -> Tensor:
        query = previous_output.to(x.dtype)
        context = self.attention(query, source).to(x.dtype)
        if self.gate is not None:
            context = self.gate(query).sigmoid() * context
        return torch.cat([x, context], dim=-1)

    def step_output(self, y: Tensor, source: SourceKeysValues) -> Tensor:
        return y

    def fast_parts(self, inner: Stack) -> None:
        """There is no fast path."""


class InputFeeding(nn.Module):
    """Attention after the step with input feeding (Luong et al. 2015, 3.3): the step reads [x_t; h~_{t-1}]."""

    def __init__(self, output: AttentionalOutput) -> None:
        super().__init__()
        self.output = output

    def init_state(self, memory: Memory) -> SourceKeysValues:
        return self.output.init_state(memory)

    def initial_output(self, state: Any) -> Tensor:
        return torch.zeros_like(_top_hidden_state(state))

    def step_input(self, x: Tensor, previous_output: Tensor, source: SourceKeysValues) -> Tensor:
        return torch.cat([x, previous_output.to(x.dtype)], dim=-1)

    def step_output(self, y: Tensor, source: SourceKeysValues) -> Tensor:
        output: Tensor = self.output(y, source)[0]
        return output

    def fast_parts(self, inner: Stack) -> InputFeedingParts | None:
        """The parts of a decoder of LSTMs alone, each in a layer without norm and skip connection; None for any other."""
        layers: Any = inner.layers
        lstms = [[part for part in layer.modules() if isinstance(part, HasLSTMWeights)] for layer in layers]
        norms = [inner.input_proj, inner.final_norm, *(layer.norm for layer in layers)]
        is_plain = all(isinstance(norm, nn.Identity) for norm in norms) and not any(layer.connection.skips for layer in layers)
        is_plain = is_plain and all(len(found) == 1 for found in lstms)
        to_q, weight = self.output.attention.to_q, self.output.attention.score_weight()
        if not is_plain or not is_linear(self.output.join) or not (is_linear(to_q) or type(to_q) is nn.Identity):
            return None
        return InputFeedingParts(
            [found[0].lstm_weights() for found in lstms],
            [layer.dropout for layer in layers],
            self.output.join,
            self.output.dropout,
            self.output.attention.scale,
            to_q if isinstance(to_q, nn.Linear) else None,
            weight,
        )


class StepwiseDecoder(nn.Module):
    """Recurrent layers whose input depends on the previous output, run one position at a time.

    A mixer. State: (state of the layers, keys and values of the source, previous output (B, 1, D)). The state of the layers
    must have a fixed size, because padding restores the previous one.
    """

    def __init__(self, inner: Stack, attention: AttentionBeforeStep | InputFeeding) -> None:
        super().__init__()
        self.inner, self.attention = inner, attention

    def init_state(self, memory: Memory) -> tuple[Any, SourceKeysValues, Tensor]:
        _, inner = self.inner.init_state(memory)
        # `where` needs equal shapes, so the number of tokens read starts as a tensor of zeros instead of None
        state = (torch.zeros_like(memory.token_mask[:, :1], dtype=torch.long), inner)
        return state, self.attention.init_state(memory), self.attention.initial_output(state)

    def forward(
        self, x: Tensor, state: tuple[Any, SourceKeysValues, Tensor], token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Any, SourceKeysValues, Tensor]]:
        inner, source, previous_output = state
        if self.runs_fast(x, token_mask) and (parts := self.attention.fast_parts(self.inner)) is not None:
            return _run_fast(parts, x, state)
        outputs = []
        routed_mask = token_mask if self.inner.routes_tokens else None  # for the other layers, `where` is enough
        for position, x_t in enumerate(torch.split(x, 1, dim=1)):
            step_mask = None if routed_mask is None else routed_mask[:, position : position + 1]
            y, new = self.inner(self.attention.step_input(x_t, previous_output, source), inner, step_mask)
            y = self.attention.step_output(y, source)
            if token_mask is not None:
                is_token = token_mask[:, position]
                new, y = where(new, inner, is_token), where(y, previous_output.to(y.dtype), is_token)
            inner, previous_output = new, y
            outputs.append(y)
        return torch.cat(outputs, dim=1), (inner, source, previous_output)

    def runs_fast(self, x: Tensor, token_mask: Tensor | None) -> bool:
        """Whether the path with few operations applies: in training, if no hook waits for the modules that it leaves out."""
        is_training = self.training and torch.is_grad_enabled() and x.size(1) > 1
        return is_training and token_mask is None and not any(module._forward_hooks for module in self.modules())


def _run_fast(
    parts: InputFeedingParts, x: Tensor, state: tuple[Any, SourceKeysValues, Tensor]
) -> tuple[Tensor, tuple[Any, SourceKeysValues, Tensor]]:
    """`StepwiseDecoder.forward` by `weft.nn.input_feeding`."""
    (num_read, states), source, previous_output = state
    keys, values, token_mask = source.parts
    outputs, states = parts.run(x, states, (keys[:, 0], values[:, 0], token_mask), previous_output[:, 0])
    return outputs, ((num_read + x.size(1), tuple(states)), source, outputs[:, -1:])
