"""Accuracy on minimal pairs: how often the grammatical sentence has the higher probability.

Ties count one half, the expected value of a random choice. So do pairs that a model cannot distinguish: those whose sentences
have equal tokens or are too long for the model. No pair is excluded, so all models are evaluated on the same pairs.

Shapes: N pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from weft.metrics.items import Array, ItemStatistics, Sums
from weft.metrics.metric import Metric

TIE = 1e-5  # nats: rounding error of the log-probability of a sentence
CHANCE = 50.0


def pair_items(good: Array, bad: Array, problems: Mapping[str, Array]) -> ItemStatistics:
    """Statistics of pairs from the log-probabilities of their sentences (N,), and problems by name, bool (N,) each.

    Keys, all (N,): pairs, correct (1, 0, or 0.5 for a tie), good, bad, and the problems. If the model cannot distinguish the
    sentences ("equal", "long"), bad is set to good.
    """
    is_indistinguishable = problems["equal"] | problems["long"]
    bad = np.where(is_indistinguishable, good, bad)
    with np.errstate(invalid="ignore"):  # -inf minus -inf
        is_tie = (good == bad) | (np.abs(good - bad) <= TIE)
    correct = np.where(is_tie, 0.5, good > bad)
    statistics = {"pairs": np.ones(len(good)), "correct": correct, "good": good, "bad": bad}
    problem_counts = {name: values.astype(np.float64) for name, values in problems.items()}
    return ItemStatistics(np.arange(len(good)), {**statistics, **problem_counts})


def pair_accuracy(totals: Sums) -> Array:
    """Percentage of correct pairs."""
    count = totals["pairs"]
    accuracy: Array = 100 * np.divide(totals["correct"], count, out=np.full_like(count, math.nan), where=count > 0)
    return accuracy


PAIRS = (Metric("accuracy", pair_accuracy, "higher", percent=True),)
