"""Linear models over sparse features: the fitted form of naive Bayes and logistic regression.

No library for sparse matrices is needed: X W with X in CSR format is an embedding bag, the weighted sum of the rows of W
that the terms of a text select; X^T G is the same with the transpose. Logistic regression is fitted with torch; naive Bayes
and predictions use NumPy alone.

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
    """X W, (N, K), for a sparse X (N, C) and W (C, K)."""
    rows = np.repeat(np.arange(features.rows), np.diff(features.indptr))
    result = np.empty((features.rows, matrix.shape[1]))
    for column, weights in enumerate(matrix.T):
        result[:, column] = np.bincount(rows, features.values * weights[features.indices], features.rows)
    return result


def transposed(features: Sparse) -> Sparse:
    """The transpose (C, N) of X (N, C)."""
    rows = np.repeat(np.arange(features.rows), np.diff(features.indptr))
    order = np.argsort(features.indices, kind="stable")  # rows ascend within a column
    indptr = np.append(0, np.cumsum(np.bincount(features.indices, minlength=features.columns)))
    return Sparse(indptr, rows[order], features.values[order], features.rows)


def presence(features: Sparse) -> Sparse:
    """The same features with 1 for every positive value: the presence of a term."""
    return features._replace(values=(features.values > 0).astype(np.float64))


def log_softmax(scores: Floats) -> Floats:
    """Log-softmax of each row, (N, K)."""
    shifted = scores - scores.max(1, keepdims=True)
    log_probs: Floats = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return log_probs


def log_sigmoid(scores: Floats) -> Floats:
    """Log-sigmoid of each element."""
    log_probs: Floats = np.minimum(scores, 0) - np.log1p(np.exp(-np.abs(scores)))
    return log_probs


class LinearModel:
    """P(class | text) from the logits x W + b: softmax over classes, or with `multilabel` a sigmoid per label."""

    def __init__(
        self, weight: Floats, bias: Floats, *, multilabel: bool, binary: bool = False, notes: tuple[str, ...] = ()
    ) -> None:
        self.weight, self.bias, self.multilabel, self.notes = weight, bias, multilabel, notes  # (C, K), (K,)
        self.binary = binary  # uses the presence of terms, not their values

    @property
    def num_classes(self) -> int:
        return len(self.bias)

    @property
    def num_parameters(self) -> int:
        return self.weight.size + self.bias.size

    def parts(self) -> dict[str, int]:
        """Parameter counts by part."""
        return {"weights": self.weight.size, "bias": self.bias.size}

    def logits(self, features: Sparse) -> Floats:
        """x W + b, (N, K), before the temperature."""
        if features.columns != len(self.weight):
            raise ModelError(
                "linear model",
                f"expected {len(self.weight):,} features, got {features.columns:,}",
                "use the features that it was trained with",
            )
        return product(presence(features) if self.binary else features, self.weight) + self.bias

    def log_probs(self, features: Sparse) -> Floats:
        """Log-probability of each class, (N, K); with `multilabel`, of each label independently."""
        scores = self.logits(features)
        return log_sigmoid(scores) if self.multilabel else log_softmax(scores)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All parameters as named arrays, for a file."""
        return {"weight": self.weight, "bias": self.bias, "flags": np.array([self.multilabel, self.binary])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> LinearModel:
        """The model of these arrays, without copying them: memory-mapped arrays stay mapped."""
        expected = {"weight": (np.float64, 2), "bias": (np.float64, 1), "flags": (np.bool_, 1)}
        for name, (dtype, ndim) in expected.items():
            if name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != ndim:
                raise ModelError("linear model", f"array {name!r} is missing or has the wrong type; the file is corrupted")
        weight, bias, flags = arrays["weight"], arrays["bias"], arrays["flags"]
        if weight.shape[1:] != bias.shape or not weight.size or len(flags) != 2:
            raise ModelError(
                "linear model",
                f"weights of shape {tuple(weight.shape)} do not match {len(bias)} classes and {len(flags)} flags; "
                "the file is corrupted",
            )
        multilabel, binary = flags.tolist()
        return cls(weight, bias, multilabel=multilabel, binary=binary)
