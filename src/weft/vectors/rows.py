"""The rows of a matrix of word vectors, dense or sparse.

Shapes: V words, D dimensions, N queries.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.text.features import Sparse

Floats = NDArray[np.float32]


class Rows(Protocol):
    """What is needed of a matrix (V, D)."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def num_values(self) -> int:
        """How many numbers are stored."""

    def take(self, ids: NDArray[np.int64]) -> Floats:
        """(N, D): some rows."""

    def norms(self) -> Floats:
        """(V,): the lengths of the rows."""

    def dot(self, queries: Floats) -> Floats:
        """(N, V): the dot product of each query (N, D) with each row."""


class DenseRows:
    """An array (V, D)."""

    def __init__(self, array: Floats) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape[0], self.array.shape[1]

    @property
    def num_values(self) -> int:
        return int(self.array.size)

    def take(self, ids: NDArray[np.int64]) -> Floats:
        return np.asarray(self.array[ids], np.float32)

    def norms(self) -> Floats:
        return np.asarray(np.linalg.norm(self.array, axis=1), np.float32)

    def dot(self, queries: Floats) -> Floats:
        return np.asarray(queries @ self.array.T, np.float32)


class SparseRows:
    """A sparse matrix (V, D), such as that of PMI."""

    def __init__(self, matrix: Sparse) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.rows, self.matrix.columns

    @property
    def num_values(self) -> int:
        return len(self.matrix.values)

    def take(self, ids: NDArray[np.int64]) -> Floats:
        rows = np.zeros((len(ids), self.matrix.columns), np.float32)
        for row, word in zip(rows, ids, strict=True):
            span = slice(self.matrix.indptr[word], self.matrix.indptr[word + 1])
            row[self.matrix.indices[span]] = self.matrix.values[span]
        return rows

    def norms(self) -> Floats:
        return np.sqrt(self._row_sums(self.matrix.values**2)).astype(np.float32)

    def dot(self, queries: Floats) -> Floats:
        return np.stack([self._row_sums(self.matrix.values * query[self.matrix.indices]) for query in queries])

    def _row_sums(self, values: NDArray[np.float64]) -> Floats:
        ends = np.concatenate([[0.0], np.cumsum(values)])
        return np.asarray(ends[self.matrix.indptr[1:]] - ends[self.matrix.indptr[:-1]], np.float32)
