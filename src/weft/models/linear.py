"""Linear models over sparse features: what naive Bayes and softmax regression both are, once their weights are found.

No library for sparse matrices is needed for it. X W with X by rows is a bag of embeddings: for each text the rows of W
that its terms name, weighed and added up; X' G is the same with X by columns. Weights are found by torch; what they say of a
text is computed by numpy: predicting needs no torch.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ModelError
from weft.text.features import Sparse

Floats = NDArray[np.float64]


def product(features: Sparse, matrix: Floats) -> Floats:
    """X W, (N, K), of a sparse X (N, C) and W (C, K)."""
    row = np.repeat(np.arange(features.rows), np.diff(features.indptr))
    found = np.empty((features.rows, matrix.shape[1]))
    for column, weights in enumerate(matrix.T):
        found[:, column] = np.bincount(row, features.values * weights[features.indices], features.rows)
    return found


def transposed(features: Sparse) -> Sparse:
    """X' (C, N) of X (N, C)."""
    row = np.repeat(np.arange(features.rows), np.diff(features.indptr))
    order = np.argsort(features.indices, kind="stable")  # rows ascend within a column
    indptr = np.append(0, np.cumsum(np.bincount(features.indices, minlength=features.columns)))
    return Sparse(indptr, row[order], features.values[order], features.rows)


def presence(features: Sparse) -> Sparse:
    """1 wherever there is more than nothing."""
    return features._replace(values=(features.values > 0).astype(np.float64))


def log_softmax(scores: Floats) -> Floats:
    """ln of the softmax of each row, (N, K)."""
    shifted = scores - scores.max(1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found


def log_sigmoid(scores: Floats) -> Floats:
    """The same of the sigmoid of each number."""
    found: Floats = np.minimum(scores, 0) - np.log1p(np.exp(-np.abs(scores)))
    return found


class LinearModel:
    """P(class | text) by its scores x W + b: a softmax over classes, or with `multi` a sigmoid for each label."""

    def __init__(
        self, weight: Floats, bias: Floats, *, multilabel: bool, binary: bool = False, notes: tuple[str, ...] = ()
    ) -> None:
        self.weight, self.bias, self.multilabel, self.notes = weight, bias, multilabel, notes  # (C, K), (K,)
        self.binary = binary  # reads only whether a term is there

    @property
    def classes(self) -> int:
        return len(self.bias)

    @property
    def num_parameters(self) -> int:
        return self.weight.size + self.bias.size

    def parts(self) -> dict[str, int]:
        """Parameters by part: a weight for each term and label, and what is said of a label before any term is seen."""
        return {"weights": self.weight.size, "bias": self.bias.size}

    def logits(self, features: Sparse) -> Floats:
        """x W + b, (N, K): what a temperature divides."""
        if features.columns != len(self.weight):
            raise ModelError(
                "linear model",
                f"features of {features.columns:,} columns, but weights for {len(self.weight):,}",
                "use the features it was trained with",
            )
        return product(presence(features) if self.binary else features, self.weight) + self.bias

    def log_probs(self, features: Sparse) -> Floats:
        """Log-probability of each class (N, K); with `multi`, that the text has the label."""
        scores = self.logits(features)
        return log_sigmoid(scores) if self.multilabel else log_softmax(scores)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything by name, for a file; `from_arrays` reads it."""
        return {"weight": self.weight, "bias": self.bias, "flags": np.array([self.multilabel, self.binary])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> LinearModel:
        """The model that `arrays` gave, on these very arrays: what is mapped from a file stays so."""
        wanted = {"weight": (np.float64, 2), "bias": (np.float64, 1), "flags": (np.bool_, 1)}
        for name, (kind, axes) in wanted.items():
            if name not in arrays or arrays[name].dtype != kind or arrays[name].ndim != axes:
                raise ModelError("linear model", f"array {name!r} is missing or of another kind", "the file is damaged")
        weight, bias, flags = arrays["weight"], arrays["bias"], arrays["flags"]
        if weight.shape[1:] != bias.shape or not weight.size or len(flags) != 2:
            raise ModelError(
                "linear model",
                f"weights of shape {tuple(weight.shape)} do not fit {len(bias)} classes and {len(flags)} flags",
                "the file is damaged",
            )
        multi, binary = flags.tolist()
        return cls(weight, bias, multilabel=multi, binary=binary)
