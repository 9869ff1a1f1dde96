"""Batches of pairs.

Shapes: B rows, S positions of the source, T of the target; a target row has T + 1 tokens, of which the first T are inputs and
the last T are targets. Both sides end with </s>.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from weft.data.batch import FULL, crop_batch
from weft.data.batching import pad_lines, preview
from weft.data.bucketing import ExampleBatchSampler, Examples, by_length
from weft.data.corpus import Corpus
from weft.errors import DataError
from weft.tasks.encoder_decoder.pair_batch import PairBatch as PairBatch


def _lengths(source: Corpus, target: Corpus) -> np.ndarray:
    """int64 (pairs, 2): positions of both sides, with </s>."""
    if source.lines != target.lines:
        problem = f"{source.name} has {source.lines} lines, but {target.name} has {target.lines}"
        raise DataError("data", problem, "use the same number of sources and targets")
    return np.stack([np.diff(source.line_starts()), np.diff(target.line_starts())], axis=1)


def _starting_with(start: Sequence[int], rows: Tensor, token_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of lines (B, 1 + T) and their token mask, with other tokens instead of <s>."""
    starts = torch.tensor([list(start)] * len(rows), dtype=rows.dtype).view(len(rows), -1)
    return torch.cat([starts, rows[:, 1:]], 1), torch.cat([torch.ones_like(starts, dtype=torch.bool), token_mask[:, 1:]], 1)


def _make_batch(source: Corpus, target: Corpus, sources: np.ndarray, targets: np.ndarray) -> PairBatch:
    rows, source_mask = _starting_with(source.start_tokens.source, *pad_lines(source, sources))
    tokens, token_mask = _starting_with(target.start_tokens.target, *pad_lines(target, targets))
    token_mask[:, 1 : len(target.start_tokens.target)] = False
    return PairBatch(rows, source_mask, tokens, token_mask)


def _snake_order(lengths: np.ndarray) -> np.ndarray:
    """int64 (N,): an order of `lengths` (N, 2) in which neighbors are similar on both sides.

    Sorted by the target and, among equal targets, by the source, alternately ascending and descending: when the target gets
    longer, the length of the source changes little.
    """
    source, target = lengths.T
    return np.lexsort((np.where(target % 2, source, -source), target))


@dataclass(frozen=True)
class PairExamples(Examples[PairBatch]):
    """Sources and their targets."""

    source: Corpus
    target: Corpus

    @cached_property
    def sizes(self) -> np.ndarray:
        """int64 (N, 2): positions of both sides, with </s>."""
        return _lengths(self.source, self.target)

    def lengths(self) -> np.ndarray:
        """int64 (N,): positions of the longer side."""
        longer: np.ndarray = self.sizes.max(axis=1)
        return longer

    def length_order(self) -> np.ndarray:
        return _snake_order(self.sizes)

    def batch(self, members: np.ndarray) -> PairBatch:
        return _make_batch(self.source, self.target, members, members)

    def loss_count(self, members: np.ndarray) -> int:
        """Tokens of the targets."""
        return int(self.sizes[members, 1].sum())

    def tokens(self, members: np.ndarray) -> int:
        return int(self.sizes[members].sum())

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> PairBatch:
        """The longest sources with the longest targets, which need not be pairs: no batch is wider on any side. Both sides are
        shortened by the same fraction: if only the longer one were, the memory of the other would be overestimated."""
        rows = len(members)
        sources, targets = np.argpartition(-self.sizes, rows - 1, axis=0)[:rows].T
        return crop_batch(_make_batch(self.source, self.target, sources, targets), fraction)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.source.name} and {self.target.name}, lines", np.sort(members) + 1)


class Pairs(ExampleBatchSampler[PairBatch]):
    """Pairs in batches of similar lengths: rows times the longer side is at most `batch_tokens`."""

    def __init__(self, source: Corpus, target: Corpus, *, batch_tokens: int, seed: int) -> None:
        data = PairExamples(source, target)

        def arrange(random: np.random.Generator, members: np.ndarray) -> np.ndarray:
            # few pairs have equal lengths: without this noise, small data sets would have the same batches in every epoch
            return _snake_order(data.sizes[members] + random.integers(2, size=(len(members), 2)))

        super().__init__(data, batch_tokens=batch_tokens, seed=seed, arrange=arrange)
        self.lengths = data.sizes

    def lines(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the numbers of the pairs in a batch, from 0."""
        return self.buckets.members(epoch, index)


def pairs_by_length(source: Corpus, target: Corpus, *, batch_tokens: int) -> Iterator[tuple[np.ndarray, PairBatch]]:
    """Every pair once, short ones first: the line numbers (B,) from 0, and the batch.

    Rows times the longer side is at most `batch_tokens`; a longer pair is a batch of its own.
    """
    return by_length(PairExamples(source, target), batch_tokens=batch_tokens)
