"""Pooling: one vector per text. `pooling(y, token_mask=None)` maps y (B, T, D) to (B, D).

token_mask (B, T) is True on tokens and False on the padding after them. Values on padding are never read, not even NaN; a row
without tokens gives zeros.
Shapes: B batch size, T sequence length, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.nn.recurrent import last_token_state


def _zero_padding(y: Tensor, token_mask: Tensor | None) -> Tensor:
    """y with zeros on padding. (masked_fill instead of a product: 0 times infinity is NaN.)"""
    return y if token_mask is None else y.masked_fill(~token_mask[..., None], 0.0)


class FirstPooling(nn.Module):
    """The vector at the first token, like BERT's [CLS]."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return _zero_padding(y[:, :1], None if token_mask is None else token_mask[:, :1])[:, 0]


class LastPooling(nn.Module):
    """The vector at the last token, where a causal stack has read the whole text."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return last_token_state(y, token_mask, None)


class BidirectionalLastPooling(nn.Module):
    """The final output of each direction of a bidirectional recurrent layer: the forward half at the last token, the backward
    half at the first token."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        half = y.size(-1) // 2
        first = _zero_padding(y[:, :1], None if token_mask is None else token_mask[:, :1])[:, 0]
        return torch.cat([last_token_state(y, token_mask, None)[:, :half], first[:, half:]], dim=-1)


class MeanPooling(nn.Module):
    """The mean over the tokens."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        if token_mask is None:
            return y.mean(1)
        return _zero_padding(y, token_mask).sum(1) / token_mask.sum(1, keepdim=True).clamp(min=1).to(y.dtype)


class MaxPooling(nn.Module):
    """The maximum of each feature over the tokens (Collobert et al. 2011)."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        if token_mask is None:
            return y.amax(1)
        maximum = y.masked_fill(~token_mask[..., None], float("-inf")).amax(1)
        return maximum.masked_fill(~token_mask.any(1, keepdim=True), 0.0)


@runtime_checkable
class WeightedPooling(Protocol):
    """Pooling with a weight for each token."""

    def weights(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor: ...


class AttentionPooling(nn.Module):
    """Attention with a learned query (Yang et al. 2016).

    y = sum_t a_t y_t,  a = softmax_t(v . tanh(W y_t + b))
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden, self.query = nn.Linear(dim, dim), nn.Linear(dim, 1, bias=False)

    def weights(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The weight of each token, (B, T); 0 on padding."""
        scores: Tensor = self.query(self.hidden(_zero_padding(y, token_mask)).tanh())[..., 0]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if token_mask is None:
            return scores.softmax(1)
        # the smallest finite number instead of -inf, which gives NaN for a row without tokens
        return scores.masked_fill(~token_mask, torch.finfo(scores.dtype).min).softmax(1).masked_fill(~token_mask, 0.0)

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        weights = self.weights(y, token_mask).to(y.dtype)
        return (weights[:, None] @ _zero_padding(y, token_mask))[:, 0]


POOLINGS: dict[str, Callable[[int], nn.Module]] = {  # called with the hidden size
    "first": lambda dim: FirstPooling(),
    "last": lambda dim: LastPooling(),
    "mean": lambda dim: MeanPooling(),
    "max": lambda dim: MaxPooling(),
    "attention": AttentionPooling,
}
