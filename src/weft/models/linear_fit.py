"""Helpers to fit linear models over sparse features with torch.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from weft.errors import DataError
from weft.models.linear import Floats
from weft.text.features import Sparse

Targets = NDArray[np.int64] | NDArray[np.bool_]


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


def one_hot_targets(targets: Targets, num_classes: int, num_rows: int) -> Tensor:
    """Targets as 0 and 1, (N, K), from the class of each text (N,) or its labels (N, K)."""
    if targets.shape not in ((num_rows,), (num_rows, num_classes)):
        raise DataError("targets", f"shape {targets.shape} does not match {num_rows:,} texts and {num_classes} classes")
    if targets.ndim == 2:
        return torch.from_numpy(targets.astype(np.float64))
    if num_rows and not 0 <= targets.min() <= targets.max() < num_classes:
        raise DataError("targets", f"must be from 0 to {num_classes - 1}, got {targets.min()} to {targets.max()}")
    return F.one_hot(torch.from_numpy(targets.astype(np.int64)), num_classes).double()


def class_weights(weights: Floats | None, num_classes: int) -> Tensor:
    """The weight of each class, (K,); 1 by default."""
    if weights is None:
        return torch.ones(num_classes, dtype=torch.float64)
    if weights.shape != (num_classes,) or not (np.isfinite(weights) & (weights > 0)).all():
        raise DataError("class weights", f"expected {num_classes} positive numbers, got {weights.tolist()}")
    return torch.from_numpy(weights.astype(np.float64))
