"""Metrics of reward models: how often the chosen text has the higher reward.

Statistics of a pair: correct (1, 0, or 1/2 for equal rewards), nats (-ln sigmoid of the difference of the rewards), longer (1
if the chosen text is longer, 1/2 if both are equally long), count.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.metrics.items import Array, Function, ItemStatistics, Sums
from weft.metrics.metric import Metric

Floats = NDArray[np.float64]


def _mean(name: str, factor: float = 1.0) -> Function:
    def mean(totals: Sums) -> Array:
        return factor * totals[name] / totals["count"]

    return mean


PREFERENCES = (
    Metric("accuracy", _mean("correct", 100.0), "higher", percent=True, tie_breaker="log_loss"),
    Metric("log_loss", _mean("nats"), "lower"),
    Metric("length_accuracy", _mean("longer", 100.0), "higher", percent=True),
)
# the log loss selects weights: many models rank all pairs of a small data set correctly
PREFERENCES_VALIDATION = (PREFERENCES[1], PREFERENCES[0], PREFERENCES[2])


def wins(differences: Floats) -> Floats:
    """1 where a difference is positive, 0 where it is negative, 1/2 where it is 0."""
    return (np.sign(differences) + 1) / 2


def preference_items(chosen: Floats, rejected: Floats, lengths: NDArray[np.int64]) -> ItemStatistics:
    """Statistics of pairs from the rewards of both texts, (N,), and their lengths in characters, (N, 2)."""
    margins = chosen - rejected
    statistics = {
        "correct": wins(margins),
        "nats": np.logaddexp(0.0, -margins),
        "longer": wins((lengths[:, 0] - lengths[:, 1]).astype(np.float64)),
        "count": np.ones(len(margins)),
    }
    return ItemStatistics(np.arange(len(margins)), statistics, [f"{margin:+.3f}" for margin in margins.tolist()])
