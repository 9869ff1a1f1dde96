"""In which order pairs are read: training batches as pure functions of (seed, epoch, index), evaluation in one pass.

Shapes: B rows, S positions of the source, T of the target; a target row holds T + 1 tokens, the first T are inputs, the
last T are targets. </s> is a token of both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import Tensor

from weft.data.corpus import Corpus
from weft.data.grouped import Grouped, filled
from weft.data.order import padded, some
from weft.errors import DataError


class PairBatch(NamedTuple):
    source: Tensor  # int64 (B, S): tokens, </s>; right-padded with 0
    source_keep: Tensor  # bool (B, S), False on padding
    tokens: Tensor  # int64 (B, T + 1): <s>, tokens, </s>; right-padded with 0
    keep: Tensor  # bool (B, T + 1)


def _lengths(source: Corpus, target: Corpus) -> np.ndarray:
    """int64 (pairs, 2): positions of both sides, </s> counted."""
    if source.lines != target.lines:
        raise DataError(
            f"data: {source.name} has {source.lines} lines and {target.name} has {target.lines};"
            " the two sides of pairs must have equally many"
        )
    return np.stack([np.diff(source.line_starts()), np.diff(target.line_starts())], axis=1)


def _paired(source: Corpus, target: Corpus, sources: np.ndarray, targets: np.ndarray) -> PairBatch:
    rows, keep = padded(source, sources)
    return PairBatch(rows[:, 1:].contiguous(), keep[:, 1:].contiguous(), *padded(target, targets))


def _snake(lengths: np.ndarray) -> np.ndarray:
    """int64 (N,): an order of `lengths` (N, 2) in which neighbours are alike on both sides.

    By the target, and among equal targets by the source, rising and falling in turn: where the target gets longer, the
    source goes on at about the length that it had.
    """
    source, target = lengths.T
    return np.lexsort((np.where(target % 2, source, -source), target))


class Pairs:
    """Pairs in batches of like lengths: rows times the longer side is at most `batch_tokens`."""

    def __init__(self, source: Corpus, target: Corpus, *, batch_tokens: int, seed: int) -> None:
        self.source, self.target, self.lengths = source, target, _lengths(source, target)

        def alike(random: np.random.Generator, part: np.ndarray) -> np.ndarray:
            # few pairs are alike on both sides: without a coin for each, small data fall into the same batches every epoch
            return _snake(self.lengths[part] + random.integers(2, size=(len(part), 2)))

        self.groups = Grouped(self.lengths.max(axis=1), batch_tokens=batch_tokens, seed=seed, arrange=alike)

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return self.groups.rows

    def lines(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the numbers of the pairs in a batch, from 0."""
        return self.groups.members(epoch, index)

    def batches(self, epoch: int) -> int:
        return self.groups.batches(epoch)

    def batch(self, epoch: int, index: int) -> PairBatch:
        lines = self.lines(epoch, index)
        return _paired(self.source, self.target, lines, lines)

    def anew(self, index: int) -> bool:
        return True

    def largest(self) -> PairBatch:
        """The longest sources beside the longest targets, pairs or not, as many as fit: no batch is wider on any side."""
        longest = int(self.lengths.max())
        rows = min(len(self.lengths), max(1, self.groups.batch_tokens // longest))
        sources, targets = np.argpartition(-self.lengths, rows - 1, axis=0)[:rows].T
        return _paired(self.source, self.target, sources, targets)

    def describe(self, epoch: int, index: int) -> str:
        return some(f"{self.source.name} and {self.target.name}, lines", np.sort(self.lines(epoch, index)) + 1)


def pairs_by_length(source: Corpus, target: Corpus, *, batch_tokens: int) -> Iterator[tuple[np.ndarray, PairBatch]]:
    """Every pair once, short ones first: the numbers (B,) of its lines from 0, and the batch.

    Rows times the longer side is at most `batch_tokens`; a longer pair comes alone.
    """
    lengths = _lengths(source, target)
    order = _snake(lengths)
    for low, high in pairwise(filled(lengths[order].max(axis=1), batch_tokens).tolist()):
        lines = order[low:high]
        yield lines, _paired(source, target, lines, lines)
