"""Scores of minimal pairs: how often the sentence that is right has the higher probability.

A tie counts half, as a coin would decide it. So does a pair that a model can't tell apart: one whose sentences become the same
tokens, or are too long for it. No pair is left out, so that all models answer the same ones.

Shapes: N pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from weft.metrics.items import Array, ItemStatistics, Sums
from weft.metrics.metric import Metric

TIE = 1e-5  # nats: what rounding may do to the sum of a sentence
CHANCE = 50.0


def pair_items(good: Array, bad: Array, problems: Mapping[str, Array]) -> ItemStatistics:
    """The statistics of pairs from the log-probabilities of their sentences (N,), and faults (N,) by name, bool.

    Of each: pairs, right (1, 0, or 0.5 of a tie), good, bad, and the faults; of a pair that can't be told apart (equal, long)
    good and bad are the same.
    """
    blind = problems["equal"] | problems["long"]
    bad = np.where(blind, good, bad)
    with np.errstate(invalid="ignore"):  # minus infinity less itself
        tie = (good == bad) | (np.abs(good - bad) <= TIE)
    correct = np.where(tie, 0.5, good > bad)
    statistics = {"pairs": np.ones(len(good)), "right": correct, "good": good, "bad": bad}
    counted = {name: values.astype(np.float64) for name, values in problems.items()}
    return ItemStatistics(np.arange(len(good)), {**statistics, **counted})


def pair_accuracy(totals: Sums) -> Array:
    """Right pairs in percent."""
    count = totals["pairs"]
    accuracy: Array = 100 * np.divide(totals["right"], count, out=np.full_like(count, math.nan), where=count > 0)
    return accuracy


PAIRS = (Metric("accuracy", pair_accuracy, "higher", percent=True),)
