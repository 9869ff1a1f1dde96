"""A random permutation with random access that takes no memory if it is large."""

from __future__ import annotations

import numpy as np

ROUNDS = 6
# a permutation of up to this many numbers is stored; the network below is for larger ones
MAX_CACHED = 1 << 22


def _mix(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """A hash of each number (the finalizer of splitmix64)."""
    mixed = values + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class Permutation:
    """A permutation of 0 ... count - 1, the same for the same `random`.

    A stored permutation of the windows of 1 GB of text at stride 1 would need more memory than the text. Above MAX_CACHED it is
    a Feistel network over the next power of four, applied repeatedly until the result is in range (cycle walking).
    """

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self.count = count
        self.cache = random.permutation(count) if count <= MAX_CACHED else None
        self.half = np.uint64(max(1, (max(1, count - 1).bit_length() + 1) // 2))
        self.keys = random.integers(1 << 64, size=ROUNDS, dtype=np.uint64)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """int64 (N,): the values of the permutation at `numbers` (N,)."""
        if self.cache is not None:
            return np.asarray(self.cache[numbers])
        values = self._feistel(numbers.astype(np.uint64))
        # the network covers at most four times the count, so a few steps are enough
        while (outside := values >= self.count).any():
            values[outside] = self._feistel(values[outside])
        return values.astype(np.int64)

    def _feistel(self, numbers: np.ndarray) -> np.ndarray:
        low = np.uint64((1 << int(self.half)) - 1)
        left, right = numbers >> self.half, numbers & low
        for key in self.keys:
            left, right = right, left ^ (_mix(right, key) & low)
        return (left << self.half) | right
