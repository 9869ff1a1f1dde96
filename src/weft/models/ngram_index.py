"""Fast lookup of many keys in a large sorted array."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

MIX = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: Fibonacci hashing
EMPTY = np.uint64(2**64 - 1)


def binary_search(keys: Ints, queries: Ints) -> Ints:
    """The row of each query in the ascending keys, or -1."""
    if not len(keys):
        return np.full(queries.shape, -1, np.int64)
    rows = np.searchsorted(keys, queries)
    rows[rows == len(keys)] = 0
    rows[keys[rows] != queries] = -1
    return rows


class HashTable:
    """The rows of keys, by open addressing.

    A hash has as many bits as a key can have, and each key its own. Its first bits are the slot where the search begins; the
    others are in the entry, which so tells its key: most rows are found by one access to memory. An entry is, from the highest
    bit: the other bits of the hash, the distance from the first slot, the row.
    """

    def __init__(self, keys: Ints, bound: int) -> None:
        self.slot_bits = max((3 * len(keys)).bit_length(), 3)  # load factor 1/6 to 1/3
        self.row_bits = len(keys).bit_length()
        self.limit = np.uint64(1 << self.row_bits)  # of rows
        hash_bits = max(bound.bit_length(), self.slot_bits)
        self.multiplier = np.uint64((MIX << 64 - hash_bits) % 2**64)
        self.max_distance = (1 << max(64 - hash_bits + self.slot_bits - self.row_bits, 0)) - 2  # from the first slot
        self.entries = np.full(1 << self.slot_bits, EMPTY)

    @classmethod
    def build(cls, keys: Ints, bound: int) -> Self | None:
        """The table of these keys (M,), all below `bound`; None if its entries would need more than 64 bits."""
        table = cls(keys, bound)
        return table if table._insert(keys) else None

    def find(self, queries: Ints) -> Ints:
        """The row of each query (n,), from -1 to `bound` - 1; -1 if it is not among the keys."""
        slots, others = self._hash(queries)
        found = self.entries.take(slots, mode="clip")
        found ^= others
        rows, left = found.view(np.int64), np.flatnonzero(self._is_other(found))
        slots, others = slots.take(left), others.take(left)
        entries = found.take(left) ^ others
        rows[left] = -1
        for distance in range(1, self.max_distance + 1):
            taken = np.flatnonzero(entries != EMPTY)
            if not len(taken):
                break
            left, slots, others = left.take(taken), self._next(slots.take(taken)), others.take(taken)
            entries = self.entries.take(slots)
            found = entries ^ others ^ self._shifted(distance)
            hits = np.flatnonzero(~self._is_other(found))
            rows[left.take(hits)] = found.take(hits)
            entries[hits] = EMPTY  # not searched any further
        return rows

    def _insert(self, keys: Ints) -> bool:
        """Insert all keys at once: those whose slot is taken by another key try the next slot."""
        slots, others = self._hash(keys)
        entries = others | np.arange(len(keys), dtype=np.uint64)
        for distance in range(self.max_distance + 1):
            placed = entries | self._shifted(distance)
            is_free = self.entries[slots] == EMPTY
            self.entries[slots[is_free]] = placed[is_free]
            is_left = self.entries[slots] != placed
            entries, slots = entries[is_left], self._next(slots[is_left])
            if not len(entries):
                self.max_distance = distance
                return True
        return False

    def _hash(self, keys: Ints) -> tuple[Ints, Words]:
        """The first slot of each key, and the other bits of its hash, as they are in an entry."""
        hashes = keys.view(np.uint64) * self.multiplier
        slots = (hashes >> np.uint64(64 - self.slot_bits)).view(np.int64)
        hashes <<= np.uint64(self.slot_bits)
        return slots, hashes

    def _next(self, slots: Ints) -> Ints:
        return slots + 1 & (1 << self.slot_bits) - 1

    def _shifted(self, distance: int) -> np.uint64:
        """The distance from the first slot, as it is in an entry."""
        return np.uint64(distance << self.row_bits)

    def _is_other(self, found: Words) -> NDArray[np.bool_]:
        """Whether entries are of other keys: after XOR with what those of the queries begin with, more than a row is left."""
        return found >= self.limit


class NgramIndex:
    """Finds the rows of keys: by binary search at first, and after enough queries by a hash table, which is several times
    faster but takes time to build."""

    def __init__(self, keys: Ints, bound: int) -> None:
        self.keys, self.bound = keys, bound  # (M,) ascending, from 0 to `bound` - 1, like the queries
        self.table: HashTable | None = None
        self.num_queries, self.has_table = 0, len(keys) > 0

    def find(self, queries: Ints) -> Ints:
        """The row of each query (n,), -1 if it is not among the keys. A query may be -1."""
        self.num_queries += len(queries)
        if self.table is None and self.has_table and self.num_queries * 8 >= len(self.keys):
            self.table = HashTable.build(self.keys, self.bound)
            self.has_table = self.table is not None
        return binary_search(self.keys, queries) if self.table is None else self.table.find(queries)
