"""Items: what an evaluation measured, in numbers that add up. A score is a pure function of their sums.

That gives batches, workers and intervals for nothing: whoever measured a part hands in its items, and they are joined.

Shapes: N items, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Array = np.ndarray
Sums = Mapping[str, Array]  # a statistic's sums, (R,) or (R, k)
Function = Callable[[Sums], Array]  # from sums to values (R,)

CHUNK = 4_000_000  # weights held at once: 32 MB


@dataclass(frozen=True)
class ItemStatistics:
    """Items by key: a line's number, or a block's. One key stands for one unit of resampling."""

    keys: Array  # (N,)
    statistics: dict[str, Array]  # each (N,) or (N, k), float64
    outputs: list[str] | None = None  # the output for each item


class Score(NamedTuple):
    name: str
    value: float
    low: float | None  # lower bound of the 95% confidence interval; None for a single item
    high: float | None
    signature: str


def _add_up(values: Array, inverse: Array, size: int) -> Array:
    total = np.zeros((size, *values.shape[1:]))
    np.add.at(total, inverse, values)
    return total


def join(parts: Iterable[ItemStatistics]) -> ItemStatistics:
    """All items, ordered by key, so that nothing depends on the batches; those of one key are added up."""
    parts = list(parts)
    if not parts:
        return ItemStatistics(np.zeros(0, np.int64), {})
    joined = np.concatenate([part.keys for part in parts])
    keys, first, inverse = np.unique(joined, return_index=True, return_inverse=True)
    statistics = {name: np.concatenate([part.statistics[name] for part in parts]) for name in parts[0].statistics}
    if len(keys) == len(joined):
        statistics = {name: values[first] for name, values in statistics.items()}
    else:
        statistics = {name: _add_up(values, inverse, len(keys)) for name, values in statistics.items()}
    if any(part.outputs is None for part in parts):
        return ItemStatistics(keys, statistics)
    if len(keys) < len(joined):
        raise ValueError("join: items with outputs share a key")
    outputs = [output for part in parts for output in part.outputs or ()]
    return ItemStatistics(keys, statistics, [outputs[index] for index in first.tolist()])


def total(statistics: Mapping[str, Array]) -> dict[str, Array]:
    """The sum of each statistic over all items, as one resample: (1,) or (1, k)."""
    return {name: values.sum(0, keepdims=True) for name, values in statistics.items()}


def _weighted(matrix: Array, samples: int, seed: int) -> Array:
    """How often each item was drawn, times the items: (R, columns), a chunk of resamples at a time."""
    size = len(matrix)
    rng = np.random.default_rng(seed)
    total = np.empty((samples, matrix.shape[1]))
    chunk = max(1, CHUNK // size)
    for start in range(0, samples, chunk):
        draws = (rng.integers(size, size=size) for _ in range(min(chunk, samples - start)))
        weights = np.stack([np.bincount(draw, minlength=size) for draw in draws]).astype(np.float64)
        total[start : start + len(weights)] = weights @ matrix
    return total


def resample(statistics: Mapping[str, Array], *, samples: int = 1000, seed: int = 0) -> dict[str, Array]:
    """Sums over `samples` draws of N items with replacement, (R,) or (R, k) each; all statistics see the same draws."""
    flat = {name: np.asarray(values, np.float64).reshape(len(values), -1) for name, values in statistics.items()}
    matrix = np.concatenate(list(flat.values()), 1)
    # 0 times infinity is NaN: infinite numbers are counted apart
    finite, infinite = np.where(np.isinf(matrix), 0.0, matrix), np.isinf(matrix)
    total = _weighted(finite, samples, seed)
    if infinite.any():
        for sign in (1.0, -1.0):
            hit = _weighted((matrix == sign * math.inf).astype(np.float64), samples, seed) > 0
            total[hit] = sign * math.inf
    widths = np.cumsum([values.shape[1] for values in flat.values()])[:-1]
    parts = zip(flat, np.split(total, widths, axis=1), strict=True)
    return {name: part.reshape(samples, *statistics[name].shape[1:]) for name, part in parts}


def interval(values: Array, level: float = 0.95) -> tuple[float, float] | None:
    """The middle `share` of resampled values, by order, for some may be infinite; None where no value is a number."""
    ordered = np.sort(values[~np.isnan(values)])
    if not len(ordered):
        return None
    aside = (1 - level) / 2 * len(ordered)
    low, high = math.floor(aside), math.ceil(len(ordered) - aside) - 1
    return float(ordered[low]), float(ordered[high])
