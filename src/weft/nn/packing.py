"""Packed rows: several texts in one row that do not see each other.

The token mask of a packed row is int64 (B, T): the number of the text of each position, from 1; texts follow one another,
and padding, 0, is at the end. Attention masks and positions depend on it. Layers that carry a state from position to position
cannot read packed rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_packed(token_mask: Tensor) -> bool:
    """Whether a token mask has the numbers of texts, instead of True on tokens and False on padding."""
    return token_mask.dtype == torch.int64


def positions_in_texts(texts: Tensor) -> Tensor:
    """The position of each token in its text, (B, T), from the numbers of the texts, (B, T)."""
    index = torch.arange(texts.size(1), device=texts.device).expand_as(texts)
    is_start = torch.ones_like(texts, dtype=torch.bool)
    is_start[:, 1:] = texts[:, 1:] != texts[:, :-1]
    return index - torch.where(is_start, index, 0).cummax(1).values


def in_same_text(texts: Tensor) -> Tensor:
    """Whether query and key are in the same text, (B, 1, T, T), from the numbers of the texts, (B, T)."""
    return (texts[:, :, None] == texts[:, None, :])[:, None]
