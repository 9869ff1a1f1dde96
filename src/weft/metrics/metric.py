"""Metrics: a metric is a function of sums of statistics, with everything that callers ask about it.

A task has suites of metrics. Two suites may have metrics with one name and different formulas (macro F1 for single labels and
for multiple labels), so a name alone is ambiguous: it is looked up in the one suite that has all names of the scores beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from weft.metrics.items import Function, ItemStatistics, Score, Sums, interval, resample, total
from weft.metrics.labels import format_score, label_of

Suite = Sequence["Metric"]


class Metric(NamedTuple):
    """One metric: its name, how its value follows from sums, and how values are read."""

    name: str
    of: Function
    better: Literal["higher", "lower"]
    interval: bool = True  # False: resampling says nothing about it
    single: str | None = None  # the metric that ranks single items, if this one is meaningless for one item alone
    needs: str | None = None  # a statistic that not every evaluation has
    per_token: bool = False  # tokens of two tokenizers differ in size: values are not comparable between them
    percent: bool = False  # from 0 to 100, or an error rate in percent
    finer: str | None = None  # the metric that orders items which this one scores the same

    @property
    def label(self) -> str:
        """How tables name it: 'exact match'."""
        return label_of(self.name).text

    @property
    def full_label(self) -> str:
        """The label with its unit: 'loss (nats/token)'."""
        label = label_of(self.name)
        return f"{label.text} ({label.unit})" if label.unit else label.text

    @property
    def is_default(self) -> bool:
        """Whether `weft evaluate` prints it without --all."""
        return label_of(self.name).is_default

    def format(self, value: float | None) -> str:
        return format_score(value, label_of(self.name).style)

    @property
    def upwards(self) -> bool:
        return self.better == "higher"

    @property
    def most(self) -> float:
        """The largest possible value: 100 for a percentage; an error rate may be larger."""
        return 100.0 if self.percent and self.upwards else math.inf

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.upwards else value < than


def _values(total: Sums, metrics: Iterable[Metric]) -> list[tuple[Metric, float]]:
    """The values of the metrics that the statistics allow; NaN, the score of an empty set, is skipped."""
    computed = [(metric, metric.of(total).item()) for metric in metrics if metric.needs is None or metric.needs in total]
    return [(metric, value) for metric, value in computed if not math.isnan(value)]


def values(items: ItemStatistics, metrics: Iterable[Metric]) -> dict[str, float]:
    """The value of every metric that the items allow, by name, in their order."""
    return {metric.name: value for metric, value in _values(total(items.statistics), metrics)}


def scores(
    items: ItemStatistics, metrics: Iterable[Metric], signature: str | Mapping[str, str], *, samples: int = 1000, seed: int = 0
) -> list[Score]:
    """The same with confidence intervals if there are several items; one signature for all, or one by metric name."""
    resampled = resample(items.statistics, samples=samples, seed=seed) if len(items.keys) > 1 else None
    results = []
    for metric, value in _values(total(items.statistics), metrics):
        bounds = interval(metric.of(resampled)) if resampled is not None and metric.interval else None
        low, high = bounds or (None, None)
        signed = signature if isinstance(signature, str) else signature[metric.name]
        results.append(Score(metric.name, value, low, high, signed))
    return results


def metric_names(suites: Iterable[Suite]) -> list[str]:
    """Every name that occurs in some suite, once."""
    return list(dict.fromkeys(metric.name for suite in suites for metric in suite))


def metrics_of(suites: Iterable[Suite], names: Iterable[str]) -> dict[str, Metric]:
    """The metrics of the given score names, from the first suite that has all of them; {} if no suite has."""
    wanted = list(names)
    for suite in suites:
        known = {metric.name: metric for metric in suite}
        if known.keys() >= set(wanted):
            return {name: known[name] for name in wanted}
    return {}
