"""Linear models over sparse features: what naive Bayes and softmax regression both are, once their weights are found.

No library for sparse matrices is needed for it. X W with X by rows is a bag of embeddings: for each text the rows of W
that its terms name, weighed and added up, and PyTorch has that, exact in float64; X' G is the same with X by columns.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from weft.errors import DataError, ModelError
from weft.text.features import Sparse

Targets = NDArray[np.int64] | NDArray[np.bool_]
Floats = NDArray[np.float64]


def times(features: Sparse, matrix: Tensor) -> Tensor:
    """X W, (N, K), of a sparse X (N, C) and W (C, K)."""
    indices, offsets = torch.from_numpy(features.indices), torch.from_numpy(features.indptr)
    values = torch.from_numpy(features.values).to(matrix.dtype)
    return F.embedding_bag(indices, matrix, offsets, mode="sum", per_sample_weights=values, include_last_offset=True)


def transposed(features: Sparse) -> Sparse:
    """X' (C, N) of X (N, C)."""
    row = np.repeat(np.arange(features.rows), np.diff(features.indptr))
    order = np.argsort(features.indices, kind="stable")  # rows ascend within a column
    indptr = np.append(0, np.cumsum(np.bincount(features.indices, minlength=features.columns)))
    return Sparse(indptr, row[order], features.values[order], features.rows)


def presence(features: Sparse) -> Sparse:
    """1 wherever there is more than nothing."""
    return features._replace(values=(features.values > 0).astype(np.float64))


def memberships(targets: Targets, classes: int, rows: int) -> Tensor:
    """Which text is of which class as 0 and 1, (N, K), from the class of each text (N,) or all its labels (N, K)."""
    if targets.shape not in ((rows,), (rows, classes)):
        raise DataError(f"targets of shape {targets.shape} do not fit {rows:,} texts and {classes} classes")
    if targets.ndim == 2:
        return torch.from_numpy(targets.astype(np.float64))
    if rows and not 0 <= targets.min() <= targets.max() < classes:
        raise DataError(f"targets from {targets.min()} to {targets.max()}, but classes are numbered from 0 to {classes - 1}")
    return F.one_hot(torch.from_numpy(targets.astype(np.int64)), classes).double()


def class_weights(weights: Floats | None, classes: int) -> Tensor:
    """How many times a text of each class counts, (K,); once where nothing is given."""
    if weights is None:
        return torch.ones(classes, dtype=torch.float64)
    if weights.shape != (classes,) or not (np.isfinite(weights) & (weights > 0)).all():
        raise DataError(f"class weights must be {classes} positive numbers, one a class, not {weights.tolist()}")
    return torch.from_numpy(weights.astype(np.float64))


class LinearModel:
    """P(class | text) by its scores x W + b: a softmax over classes, or with `multi` a sigmoid for each label."""

    def __init__(self, weight: Tensor, bias: Tensor, *, multi: bool, binary: bool = False, notes: tuple[str, ...] = ()) -> None:
        self.weight, self.bias, self.multi, self.notes = weight, bias, multi, notes  # (C, K), (K,)
        self.binary = binary  # reads only whether a term is there

    @property
    def classes(self) -> int:
        return len(self.bias)

    @property
    def parameters(self) -> int:
        return self.weight.numel() + self.bias.numel()

    def parts(self) -> dict[str, int]:
        """Parameters by part: a weight for each term and label, and what is said of a label before any term is seen."""
        return {"weights": self.weight.numel(), "bias": self.bias.numel()}

    def scores(self, features: Sparse) -> Floats:
        """x W + b, (N, K): what a temperature divides."""
        return self._scores(features).numpy()

    def log_probs(self, features: Sparse) -> Floats:
        """Log-probability of each class (N, K); with `multi`, that the text has the label."""
        scores = self._scores(features)
        return (F.logsigmoid(scores) if self.multi else scores.log_softmax(1)).numpy()

    def _scores(self, features: Sparse) -> Tensor:
        if features.columns != len(self.weight):
            raise ModelError(
                f"linear model: features of {features.columns:,} columns, but weights for {len(self.weight):,};"
                " use the features it was trained with"
            )
        return times(presence(features) if self.binary else features, self.weight) + self.bias

    def tensors(self) -> dict[str, Tensor]:
        """Everything as named arrays, for a file; `from_tensors` reads them."""
        flags = torch.tensor([self.multi, self.binary])
        return {"weight": self.weight, "bias": self.bias, "flags": flags}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> LinearModel:
        """The model that `tensors` gave, on these very tensors: what is mapped from a file stays so."""
        wanted = {"weight": (torch.float64, 2), "bias": (torch.float64, 1), "flags": (torch.bool, 1)}
        for name, (kind, axes) in wanted.items():
            if name not in tensors or tensors[name].dtype != kind or tensors[name].ndim != axes:
                raise ModelError(f"linear model: array {name!r} is missing or of another kind; the file is damaged")
        weight, bias = tensors["weight"], tensors["bias"]
        flags = tensors["flags"]
        if weight.shape[1:] != bias.shape or not weight.numel() or len(flags) != 2:
            raise ModelError(
                f"linear model: weights of shape {tuple(weight.shape)} do not fit {len(bias)} classes"
                f" and {len(flags)} flags; the file is damaged"
            )
        multi, binary = flags.tolist()
        return cls(weight, bias, multi=multi, binary=binary)
