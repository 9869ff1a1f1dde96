"""Softmax regression with an L2 penalty over sparse features, by L-BFGS in float64, to the end.

The objective is scikit-learn's: the sum of -ln P(class | text), times C, plus half the squared weights; the biases are
free. It is convex, so two programs that go on to the end find the same weights. Of two classes only the second has
weights, w, as there; the softmax of -w/2 and w/2 is their sigmoid. Where texts have several labels, each has a logistic
regression of its own.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.models.baseline_config import LogisticRegressionConfig
from weft.models.linear import Floats, LinearModel, transposed
from weft.models.linear_fit import Targets, class_weights, memberships, times
from weft.text.features import Sparse

# the largest entry of the gradient at the end. But for the free biases the objective curves at least as half a square
# does, so the weights are about as near to the best ones as the gradient is short; ten times this is seen in the third
# digit of probabilities
TOLERANCE = 1e-3
MAX_STEPS = 2000  # of L-BFGS
HISTORY = 10  # steps that it remembers


class Objective(NamedTuple):
    """C times the sum of losses, and half the squared weights; the losses are of a softmax, or of sigmoids."""

    features: Sparse  # (N, C)
    columns: Sparse  # (C, N)
    targets: Tensor  # (N, K): how many times a text counts for each class it is of
    counts: Tensor  # (N, K), or (N, 1): how many times it counts in all
    sigmoid: bool
    C: float

    def at(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value at weights (C, K) and biases (K,), and the gradient for both."""
        scores = times(self.features, weight) + bias
        if self.sigmoid:
            loss = (self.counts * F.softplus(scores) - self.targets * scores).sum()
            slope = self.counts * scores.sigmoid() - self.targets
        else:
            log_probs = scores.log_softmax(1)
            loss = -(self.targets * log_probs).sum()
            slope = self.counts * log_probs.exp() - self.targets
        slope *= self.C
        return self.C * loss + weight.square().sum() / 2, times(self.columns, slope).add_(weight), slope.sum(0)


def minimize(objective: Objective, progress: Callable[[int], None] | None) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """The weights (C, K) and biases (K,) where the objective is least, searched from zero, and what to note about it."""
    weight = torch.zeros(objective.features.columns, objective.targets.size(1), dtype=torch.float64)
    bias = torch.zeros(objective.targets.size(1), dtype=torch.float64)
    search = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_STEPS,
        tolerance_grad=TOLERANCE,
        tolerance_change=0.0,  # small steps are no end: a long flat valley is what weak penalties give
        history_size=HISTORY,
        line_search_fn="strong_wolfe",
    )
    asked = 0

    def closure() -> Tensor:
        nonlocal asked
        asked += 1
        if progress is not None:
            progress(asked)
        value, weight.grad, bias.grad = objective.at(weight, bias)
        return value

    search.step(closure)  # type: ignore[no-untyped-call]
    _, slope, lean = objective.at(weight, bias)
    left = max(float(slope.abs().max()), float(lean.abs().max()))
    if left <= TOLERANCE:
        return weight, bias, ()
    return weight, bias, (f"the regression stopped before its end: its gradient is {left:.1e}, not {TOLERANCE:.0e}",)


def fit(
    features: Sparse,
    targets: Targets,
    classes: int,
    config: LogisticRegressionConfig,
    *,
    weights: Floats | None = None,
    progress: Callable[[int], None] | None = None,
) -> LinearModel:
    """The model of texts (N, C) and the class of each (N,), or whether it has each label (N, K); `weights` (K,) says how
    many times a text of a class counts, once if None; `watch` is told how often the objective was asked for."""
    members = memberships(targets, classes, features.rows)
    mine = members * class_weights(weights, classes)
    multi, two = targets.ndim == 2, targets.ndim == 1 and classes == 2
    wanted = mine[:, 1:] if two else mine
    counts = mine + 1 - members if multi else mine.sum(1, keepdim=True)
    objective = Objective(features, transposed(features), wanted, counts, multi or two, config.C)
    weight, bias, notes = minimize(objective, progress)
    if two:
        weight, bias = torch.cat([-weight, weight], 1) / 2, torch.cat([-bias, bias]) / 2
    return LinearModel(weight.numpy(), bias.numpy(), multilabel=multi, notes=notes)
