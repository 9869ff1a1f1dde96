"""Multinomial logistic regression with an L2 penalty over sparse features, fitted to convergence by L-BFGS in float64.

    minimize  C * sum_i -ln P(y_i | x_i) + ||W||^2 / 2

The objective is that of scikit-learn; biases are not penalized. It is convex, so two programs that converge find the same
weights. With two classes, only the second has weights w, as in scikit-learn: the softmax of -w/2 and w/2 is the sigmoid of w.
With multilabel data, each label has its own binary logistic regression.

With `naive_bayes_weights` (Wang and Manning 2012), W = r * V: each term is multiplied by its naive Bayes log-ratio r for the
class, and V is penalized instead of W. Terms that are equally frequent in all classes then hardly count.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.models.baseline_config import DEFAULT_C, LogisticRegressionConfig
from weft.models.linear import Floats, LinearModel, transposed
from weft.models.linear_fit import matmul, merge_columns
from weft.models.linear_targets import Targets, class_weights, one_hot_targets
from weft.models.naive_bayes import log_ratio
from weft.text.features import Sparse

# Largest entry of the gradient at convergence. Except for the biases, the curvature of the objective is at least 1, so the
# distance of the weights from the optimum is about the norm of the gradient. Ten times this tolerance changes the third
# digit of probabilities.
TOLERANCE = 1e-3
SEARCH_TOLERANCE = 0.1  # enough to rank values of C by their validation loss, in a third of the steps
MAX_STEPS, HISTORY_SIZE = 2000, 10  # of L-BFGS


class WarmStart(NamedTuple):
    """A model to start from, such as that of another C, and the tolerance."""

    model: LinearModel | None = None
    tolerance: float = TOLERANCE


COLD_START = WarmStart()


class Objective(NamedTuple):
    """C * (sum of losses) + ||V||^2 / 2 for the weights scale * V, with a softmax or sigmoid loss."""

    features: Sparse  # (N, C)
    columns: Sparse  # (C, N)
    targets: Tensor  # (N, K): one-hot targets times class weights
    counts: Tensor  # (N, K) or (N, 1): total weight of each text
    sigmoid: bool  # sigmoid loss instead of softmax
    C: float
    scale: Tensor | None = None  # (C, K); 1 by default

    def value_and_grad(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value at V = weight (C, K) and biases (K,), and the gradients of both."""
        logits = matmul(self.features, self.scaled(weight)) + bias
        if self.sigmoid:
            loss = (self.counts * F.softplus(logits) - self.targets * logits).sum()
            grad = self.counts * logits.sigmoid() - self.targets
        else:
            log_probs = logits.log_softmax(1)
            loss = -(self.targets * log_probs).sum()
            grad = self.counts * log_probs.exp() - self.targets
        grad *= self.C
        weight_grad = self.scaled(matmul(self.columns, grad)).add_(weight)
        return self.C * loss + weight.square().sum() / 2, weight_grad, grad.sum(0)

    def scaled(self, weight: Tensor) -> Tensor:
        return weight if self.scale is None else weight * self.scale


def minimize(
    objective: Objective, start: tuple[Tensor, Tensor], progress: Callable[[int], None] | None, *, tolerance: float
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """The weights (C, K) and biases (K,) that minimize the objective, and notes for the user. `start` is changed."""
    weight, bias = start
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_STEPS,
        tolerance_grad=tolerance,
        tolerance_change=0.0,  # small steps do not mean convergence: weak penalties give long flat valleys
        history_size=HISTORY_SIZE,
        line_search_fn="strong_wolfe",
    )
    num_evaluations = 0

    def closure() -> Tensor:
        nonlocal num_evaluations
        num_evaluations += 1
        if progress is not None:
            progress(num_evaluations)
        value, weight.grad, bias.grad = objective.value_and_grad(weight, bias)
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    _, weight_grad, bias_grad = objective.value_and_grad(weight, bias)
    max_grad = max(float(weight_grad.abs().max()), float(bias_grad.abs().max()))
    if max_grad <= tolerance:
        return weight, bias, ()
    return (
        weight,
        bias,
        (f"logistic regression did not converge in {MAX_STEPS} steps (gradient {max_grad:.1e}, tolerance {tolerance:.0e})",),
    )


def fit(
    features: Sparse,
    targets: Targets,
    num_classes: int,
    config: LogisticRegressionConfig,
    *,
    weights: Floats | None = None,
    start: WarmStart = COLD_START,
    progress: Callable[[int], None] | None = None,
) -> LinearModel:
    """Fit a model to texts (N, C) with the class of each (N,), or its labels (N, K). `weights` (K,) are class weights;
    `progress` is called with the number of evaluations of the objective."""
    one_hot = one_hot_targets(targets, num_classes, features.rows)
    weighted = one_hot * class_weights(weights, num_classes)
    multilabel, is_binary = targets.ndim == 2, targets.ndim == 1 and num_classes == 2
    class_targets = torch.from_numpy(weighted[:, 1:] if is_binary else weighted)
    counts = torch.from_numpy(weighted + 1 - one_hot if multilabel else weighted.sum(1, keepdims=True))
    scale = torch.from_numpy(log_ratio(features, one_hot)) if config.naive_bayes_weights else None
    weight, bias = torch.zeros(features.columns, num_classes).double(), torch.zeros(num_classes).double()
    if start.model is not None:
        weight, bias = torch.tensor(start.model.weight), torch.tensor(start.model.bias)
        weight = weight if scale is None else torch.where(scale == 0, 0.0, weight / scale)
    merged, C = merge_columns(features), DEFAULT_C if config.C is None else config.C
    weight, scale = merged.merge_weight(weight), None if scale is None else scale[merged.first]
    if is_binary:
        # r of the second class is minus r of the first, so V has the same sign in both
        weight, bias, scale = 2 * weight[:, 1:], 2 * bias[1:], None if scale is None else scale[:, 1:]
    columns = transposed(merged.features)
    objective = Objective(merged.features, columns, class_targets, counts, multilabel or is_binary, C, scale)
    weight, bias, notes = minimize(objective, (weight, bias), progress, tolerance=start.tolerance)
    weight = merged.split_weight(objective.scaled(weight))
    if is_binary:
        weight, bias = torch.cat([-weight, weight], 1) / 2, torch.cat([-bias, bias]) / 2
    return LinearModel(weight.numpy(), bias.numpy(), multilabel=multilabel, notes=notes)
