"""Naive Bayes over sparse features (McCallum and Nigam 1998), with the estimates of scikit-learn.

Its log-probabilities are linear in the features, so the fitted model is a linear model. With multilabel data, each label
has its own naive Bayes classifier: texts with the label against texts without it.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.models.baseline_config import NaiveBayesConfig
from weft.models.linear import Floats, LinearModel, presence, transposed
from weft.models.linear_fit import Targets, class_weights, matmul, memberships
from weft.text.features import Sparse


def _multinomial(columns: Sparse, members: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Multinomial event model: ln P(term | class), (C, K), and a bias of 0."""
    counts = matmul(columns, members) + alpha
    return counts.log() - counts.sum(0).log(), torch.zeros_like(counts[0])


def _bernoulli(columns: Sparse, members: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Bernoulli event model: ln P(present) - ln P(absent), (C, K), and the bias of a text without any term, (K,)."""
    present = matmul(presence(columns), members)
    absent = (members.sum(0) - present + alpha).log()
    return (present + alpha).log() - absent, (absent - (members.sum(0) + 2 * alpha).log()).sum(0)


Estimate = Callable[[Sparse, Tensor, float], tuple[Tensor, Tensor]]
ESTIMATES: dict[str, Estimate] = {"multinomial": _multinomial, "bernoulli": _bernoulli}


def fit(
    features: Sparse, targets: Targets, classes: int, config: NaiveBayesConfig, *, weights: Floats | None = None
) -> LinearModel:
    """Fit a model to texts (N, C) with the class of each (N,), or its labels (N, K). `weights` (K,) are class weights."""
    members = memberships(targets, classes, features.rows)
    weighted = members * class_weights(weights, classes)
    columns, estimate, binary = transposed(features), ESTIMATES[config.event_model], config.event_model == "bernoulli"
    weight, bias = estimate(columns, weighted, config.alpha)
    bias += weighted.sum(0).log()
    if targets.ndim == 1:
        return LinearModel(weight.numpy(), (bias - weighted.sum().log()).numpy(), multilabel=False, binary=binary)
    other_weight, other_bias = estimate(columns, 1 - members, config.alpha)
    bias -= other_bias + (1 - members).sum(0).log()
    return LinearModel((weight - other_weight).numpy(), bias.numpy(), multilabel=True, binary=binary)
