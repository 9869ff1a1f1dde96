"""One vector of a whole text. `pool(y, keep=None)`: y (B, S, D), keep (B, S) True on tokens, then False; gives (B, D).

What stands on padding is not read, whatever it is; a row without a token gives zeros.
Shapes: B rows, S positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.nn.recurrent import last_token_state


def _tokens(y: Tensor, token_mask: Tensor | None) -> Tensor:
    """y with zeros on padding. (Filled, not multiplied: 0 times infinity is NaN.)"""
    return y if token_mask is None else y.masked_fill(~token_mask[..., None], 0.0)


class FirstPooling(nn.Module):
    """What stands at the first token: BERT's [CLS]."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return _tokens(y[:, :1], None if token_mask is None else token_mask[:, :1])[:, 0]


class LastPooling(nn.Module):
    """What stands at the last token: all that a one-way stack has read."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return last_token_state(y, token_mask, None)


class BidirectionalLastPooling(nn.Module):
    """What stands at the last token in the first half, and at the first one in the second: all that the two directions of a
    two-way recurrent layer have read."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        half = y.size(-1) // 2
        first = _tokens(y[:, :1], None if token_mask is None else token_mask[:, :1])[:, 0]
        return torch.cat([last_token_state(y, token_mask, None)[:, :half], first[:, half:]], dim=-1)


class MeanPooling(nn.Module):
    """The mean over the tokens."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        if token_mask is None:
            return y.mean(1)
        return _tokens(y, token_mask).sum(1) / token_mask.sum(1, keepdim=True).clamp(min=1).to(y.dtype)


class MaxPooling(nn.Module):
    """The largest value of each feature over the tokens (Collobert et al. 2011)."""

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        if token_mask is None:
            return y.amax(1)
        maximum = y.masked_fill(~token_mask[..., None], float("-inf")).amax(1)
        return maximum.masked_fill(~token_mask.any(1, keepdim=True), 0.0)


@runtime_checkable
class Weighs(Protocol):
    """A pool that takes more of some tokens than of others."""

    def weights(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor: ...


class AttentionPooling(nn.Module):
    """A mean weighted by softmax(v . tanh(W y + b)): what a learned question finds in each token (Yang et al. 2016)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden, self.query = nn.Linear(dim, dim), nn.Linear(dim, 1, bias=False)

    def weights(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The share of each token, (B, S); 0 on padding."""
        scores: Tensor = self.query(self.hidden(_tokens(y, token_mask)).tanh())[..., 0]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if token_mask is None:
            return scores.softmax(1)
        # the smallest number, not -inf: a row without a token would be NaN
        return scores.masked_fill(~token_mask, torch.finfo(scores.dtype).min).softmax(1).masked_fill(~token_mask, 0.0)

    def forward(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        fractions = self.weights(y, token_mask).to(y.dtype)
        return (fractions[:, None] @ _tokens(y, token_mask))[:, 0]


POOLINGS: dict[str, Callable[[int], nn.Module]] = {  # from the width
    "first": lambda dim: FirstPooling(),
    "last": lambda dim: LastPooling(),
    "mean": lambda dim: MeanPooling(),
    "max": lambda dim: MaxPooling(),
    "attention": AttentionPooling,
}
