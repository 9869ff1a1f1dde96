"""Additive statistics of evaluated items. A score is a pure function of their sums.

Statistics of batches or workers can therefore be joined, and bootstrap confidence intervals need no second evaluation.

Shapes: N items, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Array = np.ndarray
Sums = Mapping[str, Array]  # sums of each statistic, (R,) or (R, k)
Function = Callable[[Sums], Array]  # computes values (R,) from sums

CHUNK = 4_000_000  # resampling weights in memory at a time: 32 MB


@dataclass(frozen=True)
class ItemStatistics:
    """Statistics per item. A key is the number of a line or a block, the unit of resampling."""

    keys: Array  # (N,)
    statistics: dict[str, Array]  # each (N,) or (N, k), float64
    outputs: list[str] | None = None  # one output per item


class Score(NamedTuple):
    name: str
    value: float
    low: float | None  # lower bound of the 95% confidence interval; None for a single item
    high: float | None
    signature: str


def _sum_by_index(values: Array, inverse: Array, size: int) -> Array:
    total = np.zeros((size, *values.shape[1:]))
    np.add.at(total, inverse, values)
    return total


def join(parts: Iterable[ItemStatistics]) -> ItemStatistics:
    """All items, sorted by key so that the result does not depend on batching; items with equal keys are summed."""
    parts = list(parts)
    if not parts:
        return ItemStatistics(np.zeros(0, np.int64), {})
    joined = np.concatenate([part.keys for part in parts])
    keys, first, inverse = np.unique(joined, return_index=True, return_inverse=True)
    statistics = {name: np.concatenate([part.statistics[name] for part in parts]) for name in parts[0].statistics}
    if len(keys) == len(joined):
        statistics = {name: values[first] for name, values in statistics.items()}
    else:
        statistics = {name: _sum_by_index(values, inverse, len(keys)) for name, values in statistics.items()}
    if any(part.outputs is None for part in parts):
        return ItemStatistics(keys, statistics)
    if len(keys) < len(joined):
        raise ValueError("join: items with outputs share a key")
    outputs = [output for part in parts for output in part.outputs or ()]
    return ItemStatistics(keys, statistics, [outputs[index] for index in first.tolist()])


def total(statistics: Mapping[str, Array]) -> dict[str, Array]:
    """Sum of each statistic over all items, shaped like a single resample: (1,) or (1, k)."""
    return {name: values.sum(0, keepdims=True) for name, values in statistics.items()}


def _resampled_sums(matrix: Array, samples: int, seed: int) -> Array:
    """Sums (R, columns) of the drawn rows of `matrix` (N, columns), computed for a chunk of resamples at a time."""
    size = len(matrix)
    rng = np.random.default_rng(seed)
    sums = np.empty((samples, matrix.shape[1]))
    chunk = max(1, CHUNK // size)
    for start in range(0, samples, chunk):
        count = min(chunk, samples - start)
        draws = rng.integers(size, size=(count, size))
        draws += size * np.arange(count)[:, None]  # the rows of each resample are counted in a range of their own
        weights = np.bincount(draws.ravel(), minlength=count * size).reshape(count, size)
        sums[start : start + count] = weights.astype(np.float64) @ matrix
    return sums


def resample(statistics: Mapping[str, Array], *, samples: int = 1000, seed: int = 0) -> dict[str, Array]:
    """Sums over R = `samples` bootstrap resamples of the items, (R,) or (R, k) each; all statistics share the draws."""
    flat = {name: np.asarray(values, np.float64).reshape(len(values), -1) for name, values in statistics.items()}
    matrix = np.concatenate(list(flat.values()), 1)
    is_infinite = np.isinf(matrix)
    sums = _resampled_sums(np.where(is_infinite, 0.0, matrix), samples, seed)
    if is_infinite.any():  # summed separately, because the weight 0 times infinity is NaN
        for sign in (1.0, -1.0):
            is_drawn = _resampled_sums((matrix == sign * math.inf).astype(np.float64), samples, seed) > 0
            sums[is_drawn] = sign * math.inf
    splits = np.cumsum([values.shape[1] for values in flat.values()])[:-1]
    parts = zip(flat, np.split(sums, splits, axis=1), strict=True)
    return {name: part.reshape(samples, *statistics[name].shape[1:]) for name, part in parts}


def interval(values: Array, level: float = 0.95) -> tuple[float, float] | None:
    """Percentile interval of resampled values; None if all are NaN. No interpolation: values may be infinite."""
    ordered = np.sort(values[~np.isnan(values)])
    if not len(ordered):
        return None
    tail = (1 - level) / 2 * len(ordered)
    low, high = math.floor(tail), math.ceil(len(ordered) - tail) - 1
    return float(ordered[low]), float(ordered[high])
