"""Length bucketing of very many examples, without an array of all of them.

Blocks of BLOCK neighboring examples are permuted (see `Permutation`), and consecutive blocks are a pool, which is sorted by
length and divided into batches. The batches of GROUP_POOLS pools are shuffled among each other. Only the number of batches of
each group is stored; the groups that are read are computed when they are needed, and neighbors are read together.

Shapes: N examples, B rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from weft.data.sharded_array import Array
from weft.data.shuffle import Permutation

BLOCK = 64
GROUP_POOLS = 16
CHUNK_LINES = 1 << 20  # lines whose lengths are read at once

Arrange = Callable[[np.random.Generator, np.ndarray], np.ndarray]  # from indices of examples (M,) to an order (M,)
Edges = Callable[[np.ndarray], np.ndarray]  # from lengths (M,) to the edges of batches


class LineLengths:
    """The lengths of lines, computed from their starts (N + 1,) when they are needed."""

    def __init__(self, starts: Array) -> None:
        self.starts = starts

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return np.asarray(self.starts[indices + 1] - self.starts[indices])

    def mean(self) -> float:
        return float(self.starts[-1] - self.starts[0]) / len(self)

    def max(self) -> int:
        return int(self.longest(1)[1][0])

    def longest(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices and lengths, both (count,), of the longest lines. Reads all starts once, in chunks."""
        indices, lengths = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for low in range(0, len(self), CHUNK_LINES):
            chunk = np.diff(self.starts[low : min(low + CHUNK_LINES, len(self)) + 1])
            indices = np.concatenate([indices, np.arange(low, low + len(chunk))])
            lengths = np.concatenate([lengths, chunk])
            if len(lengths) > count:
                kept = np.argpartition(-lengths, count - 1)[:count]
                indices, lengths = indices[kept], lengths[kept]
        order = np.argsort(-lengths, kind="stable")
        return indices[order], lengths[order]


class StreamedPlan:
    """The batches of an epoch. A batch depends only on the seed, the epoch and its index."""

    def __init__(
        self,
        lengths: np.ndarray | LineLengths,
        *,
        seed: tuple[int, int],
        pool_size: int,
        arrange: Arrange,
        edges: Edges,
    ) -> None:
        self.lengths, self.seed, self.arrange, self.edges = lengths, seed, arrange, edges
        num_blocks = -(-len(lengths) // BLOCK)
        self.blocks = Permutation(num_blocks, np.random.default_rng(np.random.SeedSequence(seed)))
        self.pool_blocks = max(1, pool_size // BLOCK)
        group_blocks = GROUP_POOLS * self.pool_blocks
        counts = [len(self._compute(group)) for group in range(-(-num_blocks // group_blocks))]
        self.ends = np.cumsum(counts)
        self._group = lru_cache(maxsize=2)(self._compute)

    @property
    def num_batches(self) -> int:
        return int(self.ends[-1])

    def members(self, index: int) -> np.ndarray:
        """int64 (B,): indices of the examples in a batch."""
        group = int(np.searchsorted(self.ends, index, side="right"))
        return self._group(group)[index - (int(self.ends[group - 1]) if group else 0)]

    def _compute(self, group: int) -> list[np.ndarray]:
        """The batches of a group of pools, shuffled."""
        rng, batches = np.random.default_rng(np.random.SeedSequence((*self.seed, group))), list[np.ndarray]()
        for number in range(group * GROUP_POOLS, (group + 1) * GROUP_POOLS):
            pool = rng.permutation(self._pool(number))
            if len(pool):
                pool = pool[self.arrange(rng, pool)]
                batches += np.split(pool, self.edges(self.lengths[pool])[1:-1])
        return [batches[index] for index in rng.permutation(len(batches))]

    def _pool(self, number: int) -> np.ndarray:
        """int64 (M,): the examples of a pool."""
        first, last = number * self.pool_blocks, min((number + 1) * self.pool_blocks, self.blocks.count)
        blocks = self.blocks(np.arange(first, max(first, last)))
        members = (blocks[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
        return members[members < len(self.lengths)]
