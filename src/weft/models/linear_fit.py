"""Helpers to fit linear models over sparse features with torch.

Shapes: N texts, C columns (terms), M distinct columns, K classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from weft.text.features import Sparse


def matmul(features: Sparse, matrix: Tensor) -> Tensor:
    """X W, (N, K), for a sparse X (N, C) and W (C, K)."""
    indices, offsets = torch.from_numpy(features.indices), torch.from_numpy(features.indptr)
    values = torch.from_numpy(features.values).to(matrix.dtype)
    return F.embedding_bag(indices, matrix, offsets, mode="sum", per_sample_weights=values, include_last_offset=True)


class MergedColumns(NamedTuple):
    """Features (N, C) with M distinct columns. Equal columns get equal weights under an L2 penalty, so m of them are as good as
    one with sqrt(m) times the values: w x m = (sqrt(m) w) (sqrt(m) x) and m w^2 = (sqrt(m) w)^2. Half of the n-grams of short
    texts occur in the same texts as another one."""

    features: Sparse  # (N, M)
    first: NDArray[np.int64]  # (M,): a column of each group
    group: NDArray[np.int64]  # (C,): the group of each column
    root: Tensor  # (M, 1): sqrt(m)

    def merge_weight(self, weight: Tensor) -> Tensor:
        """(M, K) from (C, K)."""
        return weight[self.first] * self.root

    def split_weight(self, weight: Tensor) -> Tensor:
        """(C, K) from (M, K)."""
        return (weight / self.root)[self.group]


def merge_columns(features: Sparse) -> MergedColumns:
    rows = np.repeat(np.arange(features.rows), np.diff(features.indptr))
    # equal columns have equal random projections; two of them, so that no other columns do
    projections = np.random.default_rng(0).random((2, features.rows))
    sums = [np.bincount(features.indices, features.values * values[rows], features.columns) for values in projections]
    _, first, group, size = np.unique(np.stack(sums, 1), axis=0, return_index=True, return_inverse=True, return_counts=True)
    group, root = group.reshape(-1), np.sqrt(size)
    mask = first[group[features.indices]] == features.indices
    indices = group[features.indices[mask]]
    indptr = np.append(0, np.cumsum(np.bincount(rows[mask], minlength=features.rows)))
    merged = Sparse(indptr, indices, features.values[mask] * root[indices], len(first))
    return MergedColumns(merged, first, group, torch.from_numpy(root)[:, None])
