"""Metrics of masked language models: pseudo-log-likelihood (one token masked at a time), and the masks of validation."""

from __future__ import annotations

import numpy as np

from weft.errors import DataError
from weft.metrics.items import Array, ItemStatistics, Score, Sums
from weft.metrics.lm import EvaluationSetup, signature
from weft.metrics.metric import Metric, scores


def _loss(totals: Sums) -> Array:
    return np.divide(totals["nats"], totals["tokens"], out=np.full_like(totals["tokens"], np.nan), where=totals["tokens"] > 0)


def _perplexity(totals: Sums) -> Array:
    with np.errstate(over="ignore"):  # may overflow to infinity
        perplexity: Array = np.exp(_loss(totals))
        return perplexity


def _accuracy(totals: Sums) -> Array:
    accuracy: Array = 100 * totals["correct"] / totals["tokens"]
    return accuracy


# Not the probability of a text: not comparable with the metrics of language models.
PSEUDO = (
    Metric("pseudo_loss", _loss, "lower", per_token=True),
    Metric("pseudo_perplexity", _perplexity, "lower", per_token=True),
)
MASKED = (  # in validation: random masks, as in training
    Metric("mlm_loss", _loss, "lower"),
    Metric("mlm_accuracy", _accuracy, "higher", percent=True),
)


def masked_scores(items: ItemStatistics, setup: EvaluationSetup) -> list[Score]:
    """Pseudo-loss and pseudo-perplexity with confidence intervals."""
    tokens = int(items.statistics["tokens"].sum())
    if not tokens:
        raise DataError("evaluate", "no tokens to mask")
    return scores(items, PSEUDO, signature(setup, tokens=tokens), samples=setup.samples, seed=setup.seed)
