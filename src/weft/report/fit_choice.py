"""How `weft.fit` chooses between a network and a baseline: the one-standard-error rule.

The best score on validation data is partly luck, and more so for the best of several networks. A baseline whose score is within
one standard error of it is the safer choice, and it trains and predicts faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

from weft.comparison.results import RunResults
from weft.comparison.significance import bootstrap
from weft.metrics.metric import Metric


def standard_error(first: Sequence[RunResults], second: Sequence[RunResults], metric: Metric) -> float:
    """The standard error of the difference of two models, from their results in each fold. With one fold, it is that of a
    bootstrap over the items; 0 if the models were not scored on the same items."""
    if len(first) > 1:
        return stdev(_value(a, metric) - _value(b, metric) for a, b in zip(first, second, strict=True)) / math.sqrt(len(first))
    items = [first[0].items, second[0].items]
    if list(items[0].keys) != list(items[1].keys) or not metric.interval:
        return 0.0
    a, b = (samples[""].resamples for samples in bootstrap(items, {"": metric.compute}))
    return float((a - b).std()) if len(a) else 0.0


def is_as_good(baseline: Sequence[RunResults], best: Sequence[RunResults], metric: Metric) -> bool:
    """Whether the score of a baseline is within one standard error of the best."""
    difference = abs(_mean(best, metric) - _mean(baseline, metric))
    return difference <= standard_error(best, baseline, metric)


def _value(result: RunResults, metric: Metric) -> float:
    return next(score.value for score in result.scores if score.name == metric.name)


def _mean(results: Sequence[RunResults], metric: Metric) -> float:
    return sum(_value(result, metric) for result in results) / len(results)
