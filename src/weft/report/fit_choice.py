"""How `weft.fit` chooses between a network and a baseline.

The best score on validation data is partly luck, and more so for the best of several networks. A baseline is the safer choice
unless a network is significantly better, and it trains and predicts faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.comparison.results import RunResults
from weft.comparison.significance import bootstrap
from weft.metrics.items import ItemStatistics
from weft.metrics.metric import Metric

STANDARD_ERRORS = 1.96  # of a difference that is significant at the level of 5%


def standard_error(first: Sequence[RunResults], second: Sequence[RunResults], metric: Metric) -> float:
    """The standard error of the difference of two models, by a bootstrap over the items of all folds; 0 if they were not scored
    on the same items."""
    pairs = zip(first, second, strict=True)
    if not metric.interval or not all(np.array_equal(a.items.keys, b.items.keys) for a, b in pairs):
        return 0.0
    a, b = (samples[""].resamples for samples in bootstrap([_join(first), _join(second)], {"": metric.compute}))
    return float((a - b).std()) if len(a) else 0.0


def _join(results: Sequence[RunResults]) -> ItemStatistics:
    """The items of all folds, which do not overlap."""
    folds = [result.items.statistics for result in results]
    statistics = {name: np.concatenate([fold[name] for fold in folds]) for name in folds[0]}
    return ItemStatistics(np.arange(sum(len(result.items.keys) for result in results)), statistics)


def is_significant(difference: float, error: float) -> bool:
    """Whether a difference with this standard error is not just luck."""
    return abs(difference) > STANDARD_ERRORS * error
