"""Random permutations with random access. Large ones take no memory."""

from __future__ import annotations

import numpy as np

NUM_ROUNDS = 6
MAX_CACHED = 1 << 22  # maximum size of a stored permutation; larger ones are computed


def _mix(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """Hash of each value (the finalizer of splitmix64)."""
    mixed = values + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class Permutation:
    """A permutation of 0 ... count - 1 that depends only on the state of `rng`.

    A stored permutation of the windows of 1 GB of text at stride 1 would need more memory than the text. Above MAX_CACHED, the
    permutation is a Feistel network over the next power of four, applied repeatedly until the result is in range (cycle
    walking).
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count = count
        self.cache = rng.permutation(count) if count <= MAX_CACHED else None
        self.half_bits = np.uint64(max(1, (max(1, count - 1).bit_length() + 1) // 2))
        self.keys = rng.integers(1 << 64, size=NUM_ROUNDS, dtype=np.uint64)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """int64 (N,): values of the permutation at `indices` (N,)."""
        if self.cache is not None:
            return np.asarray(self.cache[indices])
        values = self._feistel(indices.astype(np.uint64))
        # the range of the network is at most four times the count, so few iterations are needed
        while (is_outside := values >= self.count).any():
            values[is_outside] = self._feistel(values[is_outside])
        return values.astype(np.int64)

    def _feistel(self, values: np.ndarray) -> np.ndarray:
        mask = np.uint64((1 << int(self.half_bits)) - 1)
        left, right = values >> self.half_bits, values & mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right, key) & mask)
        return (left << self.half_bits) | right
