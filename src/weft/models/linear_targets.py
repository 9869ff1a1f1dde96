"""The targets that linear models over sparse features are fitted to.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.errors import DataError
from weft.models.linear import Floats
from weft.text.features import Sparse

Targets = NDArray[np.int64] | NDArray[np.bool_]


def one_hot_targets(targets: Targets, num_classes: int, num_rows: int) -> Floats:
    """Targets as 0 and 1, (N, K), from the class of each text (N,) or its labels (N, K)."""
    if targets.shape not in ((num_rows,), (num_rows, num_classes)):
        raise DataError("targets", f"shape {targets.shape} does not match {num_rows:,} texts and {num_classes} classes")
    if targets.ndim == 2:
        return targets.astype(np.float64)
    if num_rows and not 0 <= targets.min() <= targets.max() < num_classes:
        raise DataError("targets", f"must be from 0 to {num_classes - 1}, got {targets.min()} to {targets.max()}")
    one_hot = np.zeros((num_rows, num_classes))
    one_hot[np.arange(num_rows), targets] = 1
    return one_hot


def class_weights(weights: Floats | None, num_classes: int) -> Floats:
    """The weight of each class, (K,); 1 by default."""
    if weights is None:
        return np.ones(num_classes)
    if weights.shape != (num_classes,) or not (np.isfinite(weights) & (weights > 0)).all():
        raise DataError("class weights", f"expected {num_classes} positive numbers, got {weights.tolist()}")
    return weights.astype(np.float64)


def class_sums(features: Sparse, targets: Floats) -> Floats:
    """X^T T, (C, K), for a sparse X (N, C) and targets T (N, K): the sum of each term over the texts of each class. Reads only
    the texts of a class, so with one class per text it takes as long for many classes as for two."""
    sizes, sums = np.diff(features.indptr), np.empty((targets.shape[1], features.columns))
    for row, weights in zip(sums, targets.T, strict=True):
        rows = np.flatnonzero(weights)
        size = sizes[rows]
        ends = np.cumsum(size)
        entries = np.arange(size.sum()) + np.repeat(features.indptr[rows] - ends + size, size)
        terms = features.values[entries] * np.repeat(weights[rows], size)
        row[:] = np.bincount(features.indices[entries], terms, features.columns)
    return sums.T  # NumPy adds up what is contiguous, the terms of a class, pairwise: with less error
