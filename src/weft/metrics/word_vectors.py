"""Metrics of word vectors: rank correlation with judgments of similarity, accuracy of analogies, coverage.

Spearman's correlation is that of the ranks of the covered pairs of a suite. Sums of ranks, their squares and products are
additive, so that bootstrap resampling changes the pairs, not their ranks. With several suites, the score is the mean of their
correlations.

Shapes: N items, S suites, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.metrics.classification import ratio
from weft.metrics.items import Array, Sums
from weft.metrics.metric import Metric

MOMENTS = 6  # 1, x, y, x^2, y^2, x y


def ranks(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,): ranks from 1; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], np.float64)


def rank_moments(gold: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 6): the moments of the ranks of each pair, shifted by their mean, which sums stay exact with."""
    x, y = (ranks(values) - (len(values) + 1) / 2 for values in (gold, scores))
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], 1)


def suite_correlations(moments: Array) -> Array:
    """(R, S): the correlation of each suite, from sums (R, 6 S); NaN for a suite without variance."""
    n, x, y, xx, yy, xy = np.moveaxis(moments.reshape(len(moments), -1, MOMENTS), 2, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation: Array = (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))
    return correlation


def _spearman(sums: Sums) -> Array:
    """(R,): the mean over the suites that have a correlation."""
    correlations = suite_correlations(sums["moments"])
    is_known = ~np.isnan(correlations)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean: Array = np.where(is_known, correlations, 0.0).sum(1) / is_known.sum(1)
    return mean


SPEARMAN = Metric("spearman", _spearman, "higher", requires="moments", item_metric="rank_error", signed=True)


def _accuracy(sums: Sums) -> Array:
    return 100 * ratio(sums["correct"], sums["questions"])


ANALOGIES = Metric("analogy_accuracy", _accuracy, "higher", percent=True, requires="questions")
RANK_ERROR = Metric("rank_error", lambda sums: ratio(sums["rank_error"], sums["pairs"]), "lower", requires="pairs")
COVERAGE = Metric("coverage", lambda sums: 100 * ratio(sums["covered"], sums["items"]), "higher", percent=True)
WORD_VECTORS = (SPEARMAN, ANALOGIES, COVERAGE, RANK_ERROR)
