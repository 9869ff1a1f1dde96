"""Modules in a form that can be exported to ONNX.

`exportable` replaces the modules of a copy of a model; their outputs are equal, except on padding. Recurrent layers become
operators (`onnx_recurrent.py`); the others replaced are modules whose Python code depends on sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.interop.onnx_recurrent import (
    GRUOperator,
    LinearGRUOperator,
    LSTMOperator,
    MinLSTMOperator,
    ResetBeforeGRUOperator,
    RNNOperator,
    join_directions,
)
from weft.interop.onnx_speech import TracedSpeechFront
from weft.models.encoder import EncoderInput
from weft.models.tagger import CharEncoder
from weft.nn.attention import SelfAttention
from weft.nn.bidirectional import Bidirectional
from weft.nn.cross_attention import AdditiveAttention
from weft.nn.experts import Experts, Router, Routing, every_expert
from weft.nn.min_rnn import MinGRU, MinLSTM
from weft.nn.recurrent import GRU, LSTM, RNN, ResetBeforeGRU
from weft.nn.speech_front import SpeechFront
from weft.nn.state import KVCache


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
    MinGRU: lambda layer: LinearGRUOperator(layer.input_proj.weight, layer.input_proj.bias),
    MinLSTM: MinLSTMOperator,
    Bidirectional: join_directions,
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
