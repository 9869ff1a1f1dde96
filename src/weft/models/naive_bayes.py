"""Naive Bayes over sparse features (McCallum and Nigam 1998), with the estimates of scikit-learn.

Its log-probabilities are linear in the features, so the fitted model is a linear model. With multilabel data, each label
has its own naive Bayes classifier: texts with the label against texts without it.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.models.baseline_config import DEFAULT_ALPHA, NaiveBayesConfig
from weft.models.linear import Floats, LinearModel, presence
from weft.models.linear_targets import Targets, class_sums, class_weights, one_hot_targets
from weft.text.features import Sparse


def _log(values: Floats) -> Floats:
    """The natural logarithm, without a warning about log(0): a class without examples has probability 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values))


def _multinomial(features: Sparse, one_hot: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Multinomial event model: ln P(term | class), (C, K), and a bias of 0."""
    counts = class_sums(features, one_hot) + alpha
    return _log(counts) - _log(counts.sum(0)), np.zeros(one_hot.shape[1])


def _bernoulli(features: Sparse, one_hot: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Bernoulli event model: ln P(present) - ln P(absent), (C, K), and the bias of a text without any term, (K,)."""
    present, total = class_sums(presence(features), one_hot), one_hot.sum(0)
    absent = _log(total - present + alpha)
    return _log(present + alpha) - absent, (absent - _log(total + 2 * alpha)).sum(0)


Estimate = Callable[[Sparse, Floats, float], tuple[Floats, Floats]]
ESTIMATES: dict[str, Estimate] = {"multinomial": _multinomial, "bernoulli": _bernoulli}


def log_ratio(features: Sparse, one_hot: Floats) -> Floats:
    """r of Wang and Manning (2012), (C, K): ln P(term | class) - ln P(term | other classes), from the presence of terms."""
    features = presence(features)
    return _multinomial(features, one_hot, 1.0)[0] - _multinomial(features, 1 - one_hot, 1.0)[0]


def fit(
    features: Sparse, targets: Targets, num_classes: int, config: NaiveBayesConfig, *, weights: Floats | None = None
) -> LinearModel:
    """Fit a model to texts (N, C) with the class of each (N,), or its labels (N, K). `weights` (K,) are class weights."""
    one_hot = one_hot_targets(targets, num_classes, features.rows)
    weighted = one_hot * class_weights(weights, num_classes)
    estimate, binary = ESTIMATES[config.event_model], config.event_model == "bernoulli"
    alpha = DEFAULT_ALPHA if config.alpha is None else config.alpha
    weight, bias = estimate(features, weighted, alpha)
    bias += _log(weighted.sum(0))
    if targets.ndim == 1:
        return LinearModel(weight, bias - _log(weighted.sum()), multilabel=False, binary=binary)
    other_weight, other_bias = estimate(features, 1 - one_hot, alpha)
    bias -= other_bias + _log((1 - one_hot).sum(0))
    return LinearModel(weight - other_weight, bias, multilabel=True, binary=binary)
