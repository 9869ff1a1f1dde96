"""Fast lookup of many keys in a large sorted array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Rows = NDArray[np.int32] | NDArray[np.int64]

MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: Fibonacci hashing


def binary_search(keys: Ints, queries: Ints) -> Ints:
    """The row of each query in the ascending keys, or -1."""
    if not len(keys):
        return np.full(queries.shape, -1, np.int64)
    rows = np.searchsorted(keys, queries)
    rows[rows == len(keys)] = 0
    rows[keys[rows] != queries] = -1
    return rows


class NgramIndex:
    """Finds the rows of keys: by binary search at first, and after enough queries by a hash table, which is several times
    faster but takes time to build."""

    def __init__(self, keys: Ints) -> None:
        self.keys = keys  # (M,) ascending, non-negative
        self.table: Rows | None = None
        self.num_queries = 0
        self.bits = max((3 * len(keys)).bit_length(), 3)  # load factor 1/6 to 1/3

    def find(self, queries: Ints) -> Ints:
        """The row of each query (n,), -1 if it is not among the keys."""
        self.num_queries += len(queries)
        if not len(self.keys) or (self.table is None and self.num_queries * 8 < len(self.keys)):
            return binary_search(self.keys, queries)
        if self.table is None:
            self.table = self._build_table()
        slots = self._hash(queries)
        rows = self.table.take(slots)
        is_other = self.keys.take(rows, mode="clip") != queries
        probing = np.flatnonzero(is_other & (rows >= 0))
        while len(probing):  # linear probing
            slots[probing] = slots[probing] + 1 & (1 << self.bits) - 1
            probed = self.table.take(slots[probing])
            rows[probing] = probed
            is_other = self.keys.take(probed, mode="clip") != queries[probing]
            probing = probing[is_other & (probed >= 0)]
        return rows.astype(np.int64)

    def _hash(self, keys: Ints) -> Ints:
        return (keys.view(np.uint64) * MIX >> np.uint64(64 - self.bits)).view(np.int64)

    def _build_table(self) -> Rows:
        """Insert all keys at once (open addressing): keys whose slot is taken by another key try the next slot."""
        dtype = np.dtype(np.int32 if len(self.keys) < 2**31 else np.int64)
        table: Rows = np.full(1 << self.bits, -1, dtype)
        rows: Rows = np.arange(len(self.keys), dtype=dtype)
        slots = self._hash(self.keys)
        while len(rows):
            is_free = table[slots] < 0
            table[slots[is_free]] = rows[is_free]
            is_unplaced = table[slots] != rows
            rows, slots = rows[is_unplaced], slots[is_unplaced] + 1 & (1 << self.bits) - 1
        return table
