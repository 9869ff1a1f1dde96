"""What is measured of a model: a metric is a function of sums of statistics, and everything that others ask about it.

A task has suites of metrics. Two suites may have metrics of one name and different formulas (macro F1 of one label and of
several), so a name alone says nothing: it is looked up in the one suite that has all names of the scores it stands among.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from weft.metrics.items import Function, ItemStatistics, Score, Sums, interval, resample, total

Suite = Sequence["Metric"]


class Metric(NamedTuple):
    """One score: what it is called, how it follows from sums, and how its values are read."""

    name: str
    of: Function
    better: Literal["higher", "lower"]
    interval: bool = True  # False: resampling says nothing of it
    single: str | None = None  # the metric that tells single items apart, where this one says nothing of one item alone
    needs: str | None = None  # a statistic that not every evaluation has
    per_token: bool = False  # tokens of two tokenizers are not of one size: its values don't compare between them
    percent: bool = False  # shown with two decimals
    label: str = ""  # how a report names it; "": by its name
    finer: str | None = None  # the metric that orders items of which this one says the same

    @property
    def upwards(self) -> bool:
        return self.better == "higher"

    @property
    def most(self) -> float:
        """The largest value that it can have: a share has 100, an error rate may pass it."""
        return 100.0 if self.percent and self.upwards else math.inf

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.upwards else value < than


def _values(total: Sums, metrics: Iterable[Metric]) -> list[tuple[Metric, float]]:
    """Those that the statistics allow; NaN is the score of nothing, and left out."""
    found = [(metric, metric.of(total).item()) for metric in metrics if metric.needs is None or metric.needs in total]
    return [(metric, value) for metric, value in found if not math.isnan(value)]


def values(items: ItemStatistics, metrics: Iterable[Metric]) -> dict[str, float]:
    """The value of every metric that the items allow, by name, in their order."""
    return {metric.name: value for metric, value in _values(total(items.statistics), metrics)}


def scores(
    items: ItemStatistics, metrics: Iterable[Metric], signature: str | Mapping[str, str], *, samples: int = 1000, seed: int = 0
) -> list[Score]:
    """The same with intervals, where there are several items; a signature for all, or one by each name."""
    again = resample(items.statistics, samples=samples, seed=seed) if len(items.keys) > 1 else None
    found = []
    for metric, value in _values(total(items.statistics), metrics):
        known = interval(metric.of(again)) if again is not None and metric.interval else None
        low, high = known or (None, None)
        signed = signature if isinstance(signature, str) else signature[metric.name]
        found.append(Score(metric.name, value, low, high, signed))
    return found


def metric_names(suites: Iterable[Suite]) -> list[str]:
    """Every name that occurs in some suite, once."""
    return list(dict.fromkeys(metric.name for suite in suites for metric in suite))


def metrics_of(suites: Iterable[Suite], names: Iterable[str]) -> dict[str, Metric]:
    """The metrics that names of scores mean, by name: all of the one suite that has all of them; none where no suite has."""
    wanted = list(names)
    for suite in suites:
        known = {metric.name: metric for metric in suite}
        if known.keys() >= set(wanted):
            return {name: known[name] for name in wanted}
    return {}
