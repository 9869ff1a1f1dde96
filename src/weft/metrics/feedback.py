"""Metrics of policies: mean rewards of their responses, and what shows that a reward is exploited.

Statistics of a response: reward; judge (the judgment of a model that was not trained against); length in tokens; repetition
(the fraction of repeated pairs of words); kl and entropy in nats, summed over its tokens; count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from weft.metrics.items import Array, Function, ItemStatistics, Sums
from weft.metrics.metric import Metric


def _mean(name: str, unit: str = "count", factor: float = 1.0) -> Function:
    def mean(totals: Sums) -> Array:
        return factor * totals[name] / totals[unit]

    return mean


def _metric(name: str, better: Literal["higher", "lower"], unit: str = "count") -> Metric:
    return Metric(name, _mean(name, unit), better, requires=name)


FEEDBACK = (
    _metric("reward", "higher"),
    _metric("judge", "higher"),
    Metric("repetition", _mean("repetition", factor=100.0), "lower", percent=True),
    _metric("length", "lower"),
)
FEEDBACK_VALIDATION = (
    Metric("objective", _mean("objective"), "higher", requires="objective"),
    *FEEDBACK,
    _metric("kl", "lower"),
    _metric("entropy", "higher", "length"),
)


def feedback_items(
    *,
    reward: Sequence[float] | None,
    judge: Sequence[float] | None,
    length: Sequence[int],
    repetition: Sequence[float],
    kl: Sequence[float] | None = None,
    entropy: Sequence[float] | None = None,
    outputs: list[str] | None = None,
) -> ItemStatistics:
    """Statistics of responses; None: not measured."""
    measured = {"reward": reward, "judge": judge, "length": length, "repetition": repetition, "kl": kl, "entropy": entropy}
    statistics = {name: np.array(values, np.float64) for name, values in measured.items() if values is not None}
    statistics["count"] = np.ones(len(length))
    return ItemStatistics(np.arange(len(length)), statistics, outputs)
