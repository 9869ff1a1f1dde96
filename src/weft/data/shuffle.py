"""A random order of n things of which any part can be asked for at any time; of very many it takes no memory."""

from __future__ import annotations

import numpy as np

ROUNDS = 6
# up to here the order is drawn and kept; the network below is only for sets too large for that
MAX_CACHED = 1 << 22


def _mix(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """A hash of each number (the finaliser of splitmix64)."""
    mixed = values + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class Permutation:
    """A permutation of 0 ... count - 1, the same for the same `random`.

    A stored permutation of the windows of 1 GB of text at stride 1 would take more memory than the text: beyond
    MOST_KEPT it is a Feistel network over the next power of four, walked until it falls inside.
    """

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self.count = count
        self.cache = random.permutation(count) if count <= MAX_CACHED else None
        self.half = np.uint64(max(1, (max(1, count - 1).bit_length() + 1) // 2))
        self.keys = random.integers(1 << 64, size=ROUNDS, dtype=np.uint64)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """int64 (N,): what stands at each of `numbers` (N,)."""
        if self.cache is not None:
            return np.asarray(self.cache[numbers])
        found = self._once(numbers.astype(np.uint64))
        # the network covers at most four times the count, so few steps lead back inside
        while (outside := found >= self.count).any():
            found[outside] = self._once(found[outside])
        return found.astype(np.int64)

    def _once(self, numbers: np.ndarray) -> np.ndarray:
        low = np.uint64((1 << int(self.half)) - 1)
        left, right = numbers >> self.half, numbers & low
        for key in self.keys:
            left, right = right, left ^ (_mix(right, key) & low)
        return (left << self.half) | right
