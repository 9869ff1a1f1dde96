"""Naive Bayes over sparse features (McCallum and Nigam 1998), with the estimates of scikit-learn.

Its log-probabilities are linear in the features, so the fitted model is a linear model. With multilabel data, each label
has its own naive Bayes classifier: texts with the label against texts without it.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.models.baseline_config import DEFAULT_ALPHA, NaiveBayesConfig
from weft.models.linear import Floats, LinearModel, presence, transposed
from weft.models.linear_fit import Targets, class_weights, matmul, one_hot_targets
from weft.text.features import Sparse


def _multinomial(columns: Sparse, one_hot: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Multinomial event model: ln P(term | class), (C, K), and a bias of 0."""
    counts = matmul(columns, one_hot) + alpha
    return counts.log() - counts.sum(0).log(), torch.zeros_like(counts[0])


def _bernoulli(columns: Sparse, one_hot: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Bernoulli event model: ln P(present) - ln P(absent), (C, K), and the bias of a text without any term, (K,)."""
    present = matmul(presence(columns), one_hot)
    absent = (one_hot.sum(0) - present + alpha).log()
    return (present + alpha).log() - absent, (absent - (one_hot.sum(0) + 2 * alpha).log()).sum(0)


Estimate = Callable[[Sparse, Tensor, float], tuple[Tensor, Tensor]]
ESTIMATES: dict[str, Estimate] = {"multinomial": _multinomial, "bernoulli": _bernoulli}


def log_ratio(columns: Sparse, one_hot: Tensor) -> Tensor:
    """r of Wang and Manning (2012), (C, K): ln P(term | class) - ln P(term | other classes), from the presence of terms."""
    columns = presence(columns)
    return _multinomial(columns, one_hot, 1.0)[0] - _multinomial(columns, 1 - one_hot, 1.0)[0]


def fit(
    features: Sparse, targets: Targets, num_classes: int, config: NaiveBayesConfig, *, weights: Floats | None = None
) -> LinearModel:
    """Fit a model to texts (N, C) with the class of each (N,), or its labels (N, K). `weights` (K,) are class weights."""
    one_hot = one_hot_targets(targets, num_classes, features.rows)
    weighted = one_hot * class_weights(weights, num_classes)
    columns, estimate, binary = transposed(features), ESTIMATES[config.event_model], config.event_model == "bernoulli"
    alpha = DEFAULT_ALPHA if config.alpha is None else config.alpha
    weight, bias = estimate(columns, weighted, alpha)
    bias += weighted.sum(0).log()
    if targets.ndim == 1:
        return LinearModel(weight.numpy(), (bias - weighted.sum().log()).numpy(), multilabel=False, binary=binary)
    other_weight, other_bias = estimate(columns, 1 - one_hot, alpha)
    bias -= other_bias + (1 - one_hot).sum(0).log()
    return LinearModel((weight - other_weight).numpy(), bias.numpy(), multilabel=True, binary=binary)
