"""Metrics: functions of summed statistics, with a name, a direction and a number format.

A task has one or more suites of metrics. Two suites may define the same name by different formulas (macro F1 for single-label
and for multi-label classification). A name is therefore looked up together with the names of all other scores of the
evaluation, in the first suite that has all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from weft.metrics.items import Function, ItemStatistics, Score, Sums, interval, resample, total
from weft.metrics.labels import format_score, label_of

Suite = Sequence["Metric"]


class Metric(NamedTuple):
    """A named function of summed statistics, and how to interpret its values."""

    name: str
    compute: Function
    better: Literal["higher", "lower"]
    interval: bool = True  # False: bootstrap resampling gives no valid confidence interval
    item_metric: str | None = None  # metric that ranks single items, if this one is meaningless for one item
    requires: str | None = None  # statistic that only some evaluations have
    per_token: bool = False  # depends on the tokenizer: values are comparable only between runs with the same tokenizer
    percent: bool = False  # 0 to 100, or an error rate in percent
    signed: bool = False  # may be negative: a correlation
    tie_breaker: str | None = None  # metric that orders items with equal values of this one

    @property
    def label(self) -> str:
        """Name in tables, such as 'exact match'."""
        return label_of(self.name).text

    @property
    def full_label(self) -> str:
        """The label with its unit, such as 'loss (nats/token)'."""
        label = label_of(self.name)
        return f"{label.text} ({label.unit})" if label.unit else label.text

    @property
    def is_default(self) -> bool:
        """Whether `weft evaluate` prints it without --all."""
        return label_of(self.name).is_default

    def format(self, value: float | None) -> str:
        return format_score(value, label_of(self.name).style)

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"

    @property
    def max_value(self) -> float:
        """Upper bound of the values: 100 for a percentage, none for an error rate."""
        return 100.0 if self.percent and self.higher_is_better else math.inf

    @property
    def min_value(self) -> float:
        """Lower bound of the values."""
        return -math.inf if self.signed else 0.0

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than


def _values(totals: Sums, metrics: Iterable[Metric]) -> list[tuple[Metric, float]]:
    """Values of the metrics whose statistics are available, without NaN, the value of an empty set."""
    available = [metric for metric in metrics if metric.requires is None or metric.requires in totals]
    computed = [(metric, metric.compute(totals).item()) for metric in available]
    return [(metric, value) for metric, value in computed if not math.isnan(value)]


def values(items: ItemStatistics, metrics: Iterable[Metric]) -> dict[str, float]:
    """Value by name of each metric whose statistics are available, in the order of `metrics`."""
    return {metric.name: value for metric, value in _values(total(items.statistics), metrics)}


def scores(
    items: ItemStatistics, metrics: Iterable[Metric], signature: str | Mapping[str, str], *, samples: int = 1000, seed: int = 0
) -> list[Score]:
    """The same values as scores, with confidence intervals if there are several items.

    `signature` is one string for all metrics, or a mapping by metric name.
    """
    resampled = resample(items.statistics, samples=samples, seed=seed) if len(items.keys) > 1 else None
    results = []
    for metric, value in _values(total(items.statistics), metrics):
        bounds = interval(metric.compute(resampled)) if resampled is not None and metric.interval else None
        low, high = bounds or (None, None)
        metric_signature = signature if isinstance(signature, str) else signature[metric.name]
        results.append(Score(metric.name, value, low, high, metric_signature))
    return results


def metric_names(suites: Iterable[Suite]) -> list[str]:
    """Metric names of all suites, without duplicates."""
    return list(dict.fromkeys(metric.name for suite in suites for metric in suite))


def metrics_of(suites: Iterable[Suite], names: Iterable[str]) -> dict[str, Metric]:
    """Metrics by name from the first suite that has all `names`; {} if no suite has them."""
    names = list(names)
    for suite in suites:
        by_name = {metric.name: metric for metric in suite}
        if by_name.keys() >= set(names):
            return {name: by_name[name] for name in names}
    return {}
