"""Finding many keys in a long sorted array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Rows = NDArray[np.int32] | NDArray[np.int64]

MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: spreads neighbouring keys


def halve(keys: Ints, wanted: Ints) -> Ints:
    """Row of each wanted key in the ascending keys, or -1."""
    if not len(keys):
        return np.full(wanted.shape, -1, np.int64)
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    at[keys[at] != wanted] = -1
    return at


class NgramIndex:
    """Rows of keys: by halving until enough were asked for to pay for a hash table, which is several times as quick."""

    def __init__(self, keys: Ints) -> None:
        self.keys = keys  # (M,) ascending, not negative
        self.table: Rows | None = None
        self.asked = 0
        self.bits = max((3 * len(keys)).bit_length(), 3)  # 1/6 to 1/3 of the slots are in use

    def find(self, wanted: Ints) -> Ints:
        """Row of each wanted key (n,), -1 where there is none."""
        self.asked += len(wanted)
        if not len(self.keys) or (self.table is None and self.asked * 8 < len(self.keys)):
            return halve(self.keys, wanted)
        if self.table is None:
            self.table = self._fill()
        at = self._home(wanted)
        found = self.table.take(at)
        missed = self.keys.take(found, mode="clip") != wanted
        asking = np.flatnonzero(missed & (found >= 0))
        while len(asking):
            at[asking] = at[asking] + 1 & (1 << self.bits) - 1
            here = self.table.take(at[asking])
            found[asking] = here
            other = self.keys.take(here, mode="clip") != wanted[asking]
            asking = asking[other & (here >= 0)]
        return found.astype(np.int64)

    def _home(self, keys: Ints) -> Ints:
        return (keys.view(np.uint64) * MIX >> np.uint64(64 - self.bits)).view(np.int64)

    def _fill(self) -> Rows:
        """Open addressing, all keys at once: whoever is not in its slot after the write tries the next one."""
        kind = np.dtype(np.int32 if len(self.keys) < 2**31 else np.int64)
        table: Rows = np.full(1 << self.bits, -1, kind)
        row: Rows = np.arange(len(self.keys), dtype=kind)
        at = self._home(self.keys)
        while len(row):
            free = table[at] < 0
            table[at[free]] = row[free]
            out = table[at] != row
            row, at = row[out], at[out] + 1 & (1 << self.bits) - 1
        return table
