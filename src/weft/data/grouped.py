"""Examples of like length together: the order of lines, labelled texts and tagged sentences.

Shapes: N examples, B rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

POOL = 100  # batches that are filled from one stretch of the shuffled examples, sorted by length


def filled(lengths: np.ndarray, most: int) -> np.ndarray:
    """Where to cut `lengths` (N,) so that rows times the longest is at most `most`: edges from 0 to N."""
    edges, at = [0], 0
    while at < len(lengths):
        # no more rows than this can fit, however long they are
        near = np.maximum.accumulate(lengths[at : at + max(1, most // int(lengths[at]))])
        fits = near * np.arange(1, len(near) + 1) <= most
        at += max(1, int(np.count_nonzero(fits)))
        edges.append(at)
    return np.asarray(edges)


class Grouped:
    """Every example once an epoch, in batches of like length: rows times the longest is at most `batch_tokens`.

    Each epoch shuffles the examples, sorts each stretch of about POOL batches by length, cuts it into batches and shuffles
    these. An example longer than `batch_tokens` is a batch of its own.
    """

    def __init__(self, lengths: np.ndarray, *, batch_tokens: int, seed: int) -> None:
        self.lengths, self.batch_tokens, self.seed = lengths, batch_tokens, seed
        self._plan: tuple[int, np.ndarray, np.ndarray] | None = None

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return max(1, int(self.batch_tokens / max(1.0, float(self.lengths.mean()))))

    def batches(self, epoch: int) -> int:
        return len(self._planned(epoch)[1])

    def members(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the numbers of the examples in a batch, from 0."""
        order, bounds = self._planned(epoch)
        return order[bounds[index, 0] : bounds[index, 1]]

    def longest(self) -> np.ndarray:
        """int64 (B,): the longest examples, as many as fit into a batch."""
        rows = min(len(self.lengths), max(1, self.batch_tokens // int(self.lengths.max())))
        return np.argpartition(-self.lengths, rows - 1)[:rows]

    def _planned(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples in order, and (batches, 2) where each batch starts and ends in it; the last epoch's is kept."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, *self._make_plan(epoch))
        return self._plan[1:]

    def _make_plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(np.random.SeedSequence((self.seed, epoch)))
        order = random.permutation(len(self.lengths))
        pool = POOL * self.rows
        bounds = []
        for start in range(0, len(order), pool):
            part = order[start : start + pool]
            part[:] = part[np.argsort(self.lengths[part], kind="stable")]
            edges = start + filled(self.lengths[part], self.batch_tokens)
            bounds.append(np.stack([edges[:-1], edges[1:]], axis=1))
        return order, random.permutation(np.concatenate(bounds))


def in_groups(lengths: np.ndarray, *, batch_tokens: int) -> Iterator[np.ndarray]:
    """Every example once, short ones first: int64 (B,), the numbers of those that are read together."""
    order = np.argsort(lengths, kind="stable")
    for low, high in pairwise(filled(lengths[order], batch_tokens).tolist()):
        yield order[low:high]
