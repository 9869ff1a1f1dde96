"""Pointwise mutual information of words, and the singular vectors of its matrix (Levy et al. 2015).

    PMI(w, c) = log P(w, c) / (P(w) P'(c)),   P'(c) proportional to (count of c) ^ context_power

Shapes: V words, M pairs that occur, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.models.cooccurrence import Cooccurrences
from weft.models.word_vectors_config import PMIConfig
from weft.text.features import Sparse

if TYPE_CHECKING:
    from torch import Tensor

OVERSAMPLING, POWER_ITERATIONS = 20, 5  # of the randomized SVD


def pmi_matrix(pairs: Cooccurrences, config: PMIConfig) -> Sparse:
    """(V, V): the PMI of all observed pairs, less the logarithm of `shift`. With `positive`, only values above 0 are stored."""
    size = pairs.num_words
    total = pairs.counts.sum()
    word = np.bincount(pairs.words, pairs.counts, size)
    context = np.bincount(pairs.contexts, pairs.counts, size) ** config.context_power
    expected = word[pairs.words] / total * context[pairs.contexts] / context.sum()
    values = np.log(pairs.counts / total / expected) - np.log(config.shift)
    kept = values > 0 if config.positive else np.ones(len(values), bool)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs.words[kept], minlength=size))])
    return Sparse(indptr, pairs.contexts[kept], values[kept], size)


def pmi_vectors(
    matrix: Sparse, config: PMIConfig, *, seed: int, progress: Callable[[int, int], None] | None = None
) -> NDArray[np.float32]:
    """(V, D): left singular vectors, times the singular values to the power `eigenvalue_power`."""
    left, values = truncated_svd(matrix, min(config.vector_size, matrix.rows), seed=seed, progress=progress)
    vectors = (left * values**config.eigenvalue_power).numpy().astype(np.float32)
    missing = config.vector_size - vectors.shape[1]
    return np.pad(vectors, ((0, 0), (0, missing)))  # a matrix has no more singular vectors than rows


def truncated_svd(
    matrix: Sparse, size: int, *, seed: int, progress: Callable[[int, int], None] | None = None
) -> tuple[Tensor, Tensor]:
    """The largest singular values (D,) of a sparse matrix, and its left singular vectors (V, D), by a randomized range finder
    with power iterations (Halko et al. 2011). The largest element of each vector is positive."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    columns = min(size + OVERSAMPLING, matrix.rows, matrix.columns)
    multiply, transposed = _products(matrix)
    basis = torch.randn(matrix.columns, columns, generator=generator)
    for done in range(POWER_ITERATIONS):
        basis = torch.linalg.qr(multiply(basis))[0]
        basis = torch.linalg.qr(transposed(basis))[0]
        if progress is not None:
            progress(done + 1, POWER_ITERATIONS + 1)
    # of A Q, with Q orthonormal: its left singular vectors are those of A in this range
    left, values, _ = torch.linalg.svd(multiply(basis).double(), full_matrices=False)
    left, values = left[:, :size], values[:size]
    largest = left.gather(0, left.abs().argmax(0, keepdim=True))
    return left * torch.where(largest < 0, -1.0, 1.0), values


def _products(matrix: Sparse) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Functions for A x and A^T x."""
    rows = np.repeat(np.arange(matrix.rows), np.diff(matrix.indptr))
    order = np.argsort(matrix.indices, kind="stable")
    column_ends = np.concatenate([[0], np.cumsum(np.bincount(matrix.indices, minlength=matrix.columns))])
    straight = _embedding_bag(matrix.indptr, matrix.indices, matrix.values)
    return straight, _embedding_bag(column_ends, rows[order], matrix.values[order])


def _embedding_bag(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], values: NDArray[np.float64]
) -> Callable[[Tensor], Tensor]:
    """The product of a sparse matrix: a weighted sum of rows for each of its rows."""
    import torch

    offsets, columns = torch.from_numpy(np.ascontiguousarray(indptr)), torch.from_numpy(np.ascontiguousarray(indices))
    weights = torch.from_numpy(values.astype(np.float32))

    def product(x: Tensor) -> Tensor:
        return torch.nn.functional.embedding_bag(
            columns, x, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
        )

    return product
