"""Batches of running text that all have the same shape, so that compiled code is compiled once.

The last batch of an epoch has fewer rows (`Windows`) or shorter ones (`Streams`). Here it is padded, and every batch has a
token mask: without one in some batches, there would be two versions of the code.
"""

from __future__ import annotations

from fractions import Fraction

import torch
import torch.nn.functional as F

from weft.data.batch import FULL
from weft.data.batching import Batch, BatchSampler


class EqualShapes:
    """The batches of another sampler of running text with padding at the ends of rows, and rows of padding after the last."""

    def __init__(self, sampler: BatchSampler) -> None:
        self.sampler = sampler
        self._shape = tuple(sampler.largest_batch().tokens.shape)

    @property
    def rows(self) -> int:
        return self.sampler.rows

    def batches(self, epoch: int) -> int:
        return self.sampler.batches(epoch)

    def batch(self, epoch: int, index: int) -> Batch:
        return _pad(self.sampler.batch(epoch, index), self._shape)

    def resets_state(self, index: int) -> bool:
        return self.sampler.resets_state(index)

    def largest_batch(self, fraction: Fraction = FULL) -> Batch:
        batch = self.sampler.largest_batch(fraction)
        return _pad(batch, tuple(batch.tokens.shape))

    def describe(self, epoch: int, index: int) -> str:
        return self.sampler.describe(epoch, index)


def _pad(batch: Batch, shape: tuple[int, ...]) -> Batch:
    """A batch without a token mask as one of `shape`, with a token mask; padding is token 0."""
    rows, length = (size - actual for size, actual in zip(shape, batch.tokens.shape, strict=True))
    token_mask = torch.ones_like(batch.tokens, dtype=torch.bool)
    return Batch(F.pad(batch.tokens, (0, length, 0, rows)), F.pad(token_mask, (0, length, 0, rows)))
