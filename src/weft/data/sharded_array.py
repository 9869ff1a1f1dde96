"""Arrays in several memory-mapped files that are indexed like one array.

A file is mapped when it is first read, and only MAX_MAPPED files at a time. Pages that were read count as memory of the process
until they are released: after about RELEASE_BYTES they are, so the memory in use does not grow with the size of the files. The
operating system still keeps them in its cache.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft import files
from weft.errors import ModelError

MAX_MAPPED = 128  # an open mapping keeps a file descriptor; processes often have 1,024
RELEASE_BYTES = 64 << 20
READ_AHEAD = 1 << 16  # bytes that the system maps around a position that is read


class Array(Protocol):
    """What a corpus needs of an array: a NumPy array, or one in several files. `np.asarray` reads all of it."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __array__(self) -> np.ndarray: ...


class ArrayPart(NamedTuple):
    """The first `length` rows of an array in a file, to whose values `offset` is added."""

    path: Path
    length: int
    offset: np.ndarray | int = 0  # of the shape of a row


def _ignore() -> None:
    """Before a read: nothing to check."""


class ShardedArray:
    """The rows of several files, one after another. `shape` is that of a row: () or (K,)."""

    def __init__(
        self,
        parts: Sequence[ArrayPart],
        dtype: str,
        row_shape: tuple[int, ...] = (),
        before_read: Callable[[], None] = _ignore,
    ) -> None:
        self.parts, self.dtype, self.row_shape = tuple(parts), np.dtype(dtype), row_shape
        self.edges = np.concatenate([[0], np.cumsum([part.length for part in parts], dtype=np.int64)])
        self._before_read = before_read
        self._mapped: OrderedDict[int, tuple[mmap.mmap, np.ndarray]] = OrderedDict()
        self._read_bytes = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.row_shape)

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values: np.ndarray = self[:]
        return values if dtype is None else values.astype(dtype)

    def __getitem__(self, key: Any) -> Any:
        """As of a NumPy array: an index, a slice, a mask, an array of indices, or one of these and a column."""
        if isinstance(key, tuple):
            rows, column = key
            return self[rows][..., column]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._range(start, stop) if step == 1 else self._take(np.arange(start, stop, step))
        indices = np.asarray(key)
        if indices.dtype == bool:
            indices = np.flatnonzero(indices)
        return self._take(indices) if indices.ndim else self._take(indices[None])[0]

    def _range(self, start: int, stop: int) -> np.ndarray:
        if start >= stop:
            return np.zeros((0, *self.row_shape), self.dtype)
        first, last = np.searchsorted(self.edges, (start, stop - 1), side="right") - 1
        pieces = []
        for number in range(first, last + 1):
            low, high = self.edges[number], self.edges[number + 1]
            pieces.append(self._rows(number, slice(max(start, low) - low, min(stop, high) - low)))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _take(self, indices: np.ndarray) -> np.ndarray:
        flat = indices.reshape(-1).astype(np.int64)
        if len(flat) and not (-len(self) <= flat.min() and flat.max() < len(self)):
            raise IndexError(f"index out of range for {len(self)} rows")
        flat = np.where(flat < 0, flat + len(self), flat)
        owners = np.searchsorted(self.edges, flat, side="right") - 1
        result = np.empty((len(flat), *self.row_shape), self.dtype)
        order = np.argsort(owners.astype(np.uint16) if len(self.parts) < 1 << 16 else owners, kind="stable")  # a radix sort
        numbers, starts = np.unique(owners[order], return_index=True)
        for number, members in zip(numbers.tolist(), np.split(order, starts[1:]), strict=False):
            result[members] = self._rows(number, flat[members] - self.edges[number])
        return result.reshape(*indices.shape, *self.row_shape)

    def _rows(self, number: int, key: Any) -> np.ndarray:
        """Rows of one part."""
        self._before_read()
        part, rows = self.parts[number], np.asarray(self._map(number)[key])
        bytes_per_row = max(1, rows.nbytes // max(1, len(rows)))
        self._read_bytes += rows.nbytes + READ_AHEAD if isinstance(key, slice) else _scattered_bytes(key, bytes_per_row)
        if self._read_bytes > RELEASE_BYTES:
            self._release()
        return rows if isinstance(part.offset, int) and part.offset == 0 else np.add(rows, part.offset)

    def _map(self, number: int) -> np.ndarray:
        if number in self._mapped:
            self._mapped.move_to_end(number)
            return self._mapped[number][1]
        path = self.parts[number].path
        files.refuse_device(path)
        try:
            with path.open("rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(path, f"cannot be read: {error}", "run weft prepare again to restore it") from None
        values = np.frombuffer(mapping, self.dtype).reshape(-1, *self.row_shape)
        self._mapped[number] = mapping, values
        while len(self._mapped) > MAX_MAPPED:
            self._mapped.popitem(last=False)  # unmapped when the last slice of it is gone
        return values

    def _release(self) -> None:
        """Give the pages that were read back to the system, which may keep them in its cache."""
        self._read_bytes = 0
        for mapping, _ in self._mapped.values():
            mapping.madvise(mmap.MADV_DONTNEED)


def _scattered_bytes(indices: np.ndarray, bytes_per_row: int) -> int:
    """About how many bytes the system maps to read these rows, which may be runs of neighbors."""
    jumps = 1 + int(np.count_nonzero(np.abs(np.diff(indices)) * bytes_per_row >= READ_AHEAD))
    return jumps * READ_AHEAD + len(indices) * bytes_per_row
