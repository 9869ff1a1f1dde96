"""Scores of masked language models, from nats of tokens that were hidden one at a time."""

from __future__ import annotations

import numpy as np

from weft.errors import DataError
from weft.metrics.items import Array, ItemStatistics, Score, Sums
from weft.metrics.lm import EvaluationSetup, signature
from weft.metrics.metric import Metric, scores


def _nats(totals: Sums) -> Array:
    return np.divide(totals["nats"], totals["tokens"], out=np.full_like(totals["tokens"], np.nan), where=totals["tokens"] > 0)


def _perplexity(totals: Sums) -> Array:
    with np.errstate(over="ignore"):  # beyond the largest number it is infinite
        perplexity: Array = np.exp(_nats(totals))
        return perplexity


def _accuracy(totals: Sums) -> Array:
    accuracy: Array = 100 * totals["right"] / totals["tokens"]
    return accuracy


# they are no probabilities of texts, and can't be compared with a language model's
PSEUDO = (
    Metric("pseudo_loss", _nats, "lower", per_token=True),
    Metric("pseudo_perplexity", _perplexity, "lower", per_token=True),
)
MASKED = (  # of the masks in validation
    Metric("mlm_loss", _nats, "lower"),
    Metric("mlm_accuracy", _accuracy, "higher", percent=True),
)


def masked_scores(items: ItemStatistics, setup: EvaluationSetup) -> list[Score]:
    """Both pseudo-scores with their intervals."""
    tokens = int(items.statistics["tokens"].sum())
    if not tokens:
        raise DataError("evaluate", "no tokens to mask")
    named = signature(setup, tokens=tokens)
    return scores(items, PSEUDO, named, samples=setup.samples, seed=setup.seed)
