"""Naive Bayes over sparse features (McCallum and Nigam 1998), by counting; the numbers are scikit-learn's.

Its scores are linear in the features, so what comes out is a linear model. Where texts have several labels each label has
a naive Bayes of its own, of texts with it against texts without it.

Shapes: N texts, C columns (terms), K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.models.baseline_config import NaiveBayesConfig
from weft.models.linear import Floats, LinearModel, presence, transposed
from weft.models.linear_fit import Targets, class_weights, memberships, times
from weft.text.features import Sparse


def _multinomial(columns: Sparse, members: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """ln P(term | class), (C, K), and nothing added: the terms that a text has are drawn one by one."""
    counts = times(columns, members) + alpha
    return counts.log() - counts.sum(0).log(), torch.zeros_like(counts[0])


def _bernoulli(columns: Sparse, members: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """ln P(there) - ln P(not there), (C, K), and what a text without any term has: it is drawn for each term."""
    there = times(presence(columns), members)
    absent = (members.sum(0) - there + alpha).log()
    return (there + alpha).log() - absent, (absent - (members.sum(0) + 2 * alpha).log()).sum(0)


Estimate = Callable[[Sparse, Tensor, float], tuple[Tensor, Tensor]]
ESTIMATES: dict[str, Estimate] = {"multinomial": _multinomial, "bernoulli": _bernoulli}


def fit(
    features: Sparse, targets: Targets, classes: int, config: NaiveBayesConfig, *, weights: Floats | None = None
) -> LinearModel:
    """The model of texts (N, C) and the class of each (N,), or whether it has each label (N, K); `weights` (K,) says how
    many times a text of a class counts, once if None."""
    members = memberships(targets, classes, features.rows)
    mine = members * class_weights(weights, classes)
    columns, estimate, binary = transposed(features), ESTIMATES[config.event_model], config.event_model == "bernoulli"
    weight, bias = estimate(columns, mine, config.alpha)
    bias += mine.sum(0).log()
    if targets.ndim == 1:
        return LinearModel(weight.numpy(), (bias - mine.sum().log()).numpy(), multilabel=False, binary=binary)
    other_weight, other_bias = estimate(columns, 1 - members, config.alpha)
    bias -= other_bias + (1 - members).sum(0).log()
    return LinearModel((weight - other_weight).numpy(), bias.numpy(), multilabel=True, binary=binary)
