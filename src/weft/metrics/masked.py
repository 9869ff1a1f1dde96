"""Scores of masked language models, from nats of tokens that were hidden one at a time."""

from __future__ import annotations

import numpy as np

from weft.errors import DataError
from weft.metrics.items import Array, Function, Items, Score, Sums, interval, resample, sums
from weft.metrics.language import Measured, signature


def _nats(totals: Sums) -> Array:
    return np.divide(totals["nats"], totals["tokens"], out=np.full_like(totals["tokens"], np.nan), where=totals["tokens"] > 0)


def _perplexity(totals: Sums) -> Array:
    with np.errstate(over="ignore"):  # beyond the largest number it is infinite
        found: Array = np.exp(_nats(totals))
        return found


SCORES: dict[str, Function] = {"pseudo_nats_per_token": _nats, "pseudo_perplexity": _perplexity}


def masked_scores(items: Items, measured: Measured) -> list[Score]:
    """Both scores with their intervals; they are no probabilities of texts, and can't be compared with a language model's."""
    total = sums(items.statistics)
    tokens = int(total["tokens"].item())
    if not tokens:
        raise DataError("evaluate: there is no token to hide; give it a text that is not empty")
    again = resample(items.statistics, samples=measured.samples, seed=measured.seed) if len(items.keys) > 1 else None
    name_of_it = signature(measured, tokens=tokens)
    scores = []
    for name, function in SCORES.items():
        low, high = (interval(function(again)) if again is not None else None) or (None, None)
        scores.append(Score(name, function(total).item(), low, high, name_of_it))
    return scores
