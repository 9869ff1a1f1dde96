"""Metrics of a bilingual lexicon: ranked translations against several that are correct.

P@k is the fraction of source words with a correct translation among the first k. MRR is the mean of 1 / rank of the first
correct one, MAP the mean over source words of the average precision over all correct ones.

Shapes: N source words, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.metrics.classification import ratio
from weft.metrics.items import Array, ItemStatistics, Sums
from weft.metrics.metric import Metric

CUTOFFS = (1, 5, 10)


def _mean(name: str, scale: float = 1.0) -> Callable[[Sums], Array]:
    return lambda sums: scale * ratio(sums[name], sums["covered"])


LEXICON = (
    *(Metric(f"precision_at_{k}", _mean(f"hit_{k}", 100), "higher", percent=True) for k in CUTOFFS),
    Metric("mrr", _mean("reciprocal_rank"), "higher"),
    Metric("map", _mean("average_precision"), "higher"),
    Metric("coverage", lambda sums: 100 * ratio(sums["covered"], sums["words"]), "higher", percent=True),
)


def lexicon_items(ranks: Sequence[NDArray[np.int64] | None]) -> ItemStatistics:
    """Statistics of N source words, from the ranks of their correct translations, from 1; None: not covered."""
    statistics = {name: np.zeros(len(ranks)) for name in ("words", "covered", "reciprocal_rank", "average_precision")}
    statistics |= {f"hit_{k}": np.zeros(len(ranks)) for k in CUTOFFS}
    statistics["words"][:] = 1.0
    for index, found in enumerate(ranks):
        if found is None:
            continue
        ordered = np.sort(found)
        statistics["covered"][index] = 1.0
        statistics["reciprocal_rank"][index] = 1.0 / ordered[0]
        statistics["average_precision"][index] = (np.arange(1, len(ordered) + 1) / ordered).mean()
        for k in CUTOFFS:
            statistics[f"hit_{k}"][index] = float(ordered[0] <= k)
    return ItemStatistics(np.arange(len(ranks)), statistics)
