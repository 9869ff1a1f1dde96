"""Significance tests of the difference between models, over test items and, with several seeds, over training runs.

Two single runs: approximate randomization, paired over items (Noreen 1989; Riezler & Maxwell 2005). If the runs were equally
good, it would not matter which of them gave which output: the two outputs of each item are exchanged at random, and p is how
often that gives a difference at least as large as the observed one. The test says that these two models differ, not that their
architectures do.

Two architectures with several seeds: the score of seed s on the test items is modeled as

    Y(s) = mean of the architecture + effect of the seed + effect of the items on the architecture + effect of the items on s.

Seeds of two architectures are independent, items are the same for all. So the difference of two means over k and m seeds has
the variance

    V = S_a^2 / k + S_b^2 / m + I,

where S^2 is the sample variance over the seeds of an architecture (it includes the effect of the items on a seed), and I the
variance of the effect of the items on an architecture, from a bootstrap over items that all runs share: the mean covariance
of two seeds of a, plus that of b, minus twice that of one of each. Resampling seeds as well would give S^2 (k - 1) / k: with
two seeds, half of the variance, and short tails where the true ones are long. Equal architectures would be called different
in up to 30% of cases. Instead, the difference over sqrt(V) is compared with Student's t with the degrees of freedom of Welch
and Satterthwaite,

    (sum of w v)^2 / sum of (w v)^2 / f,     v one of the three parts, f its degrees of freedom: k - 1, m - 1, items - 1,

with w = 2 for the two parts of seeds and 1 for that of items. Unweighted (w = 1), a variance of two seeds that is small by
chance would be trusted where that of items is just as small. With these weights, equal architectures are called different in
4 to 5% of cases with two seeds or more, whatever the fraction of seeds in the variance (2% if it is all of it and there are two
seeds). The worst remaining case is 10%: two seeds of an architecture with a large variance over seeds against one with none.
tests/test_significance.py simulates this.

Shapes: N items, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.comparison.student_t import quantile, two_sided_p
from weft.metrics.items import CHUNK, Array, Function, ItemStatistics, interval, resample, total
from weft.metrics.metric import Metric

SAMPLES = 1000
LEVEL = 0.05
SEED_WEIGHT = 2.0  # weight of a variance over seeds in the degrees of freedom


class Estimate(NamedTuple):
    """A score, or the mean over seeds, with its 95% confidence interval; bounds are None if there is too little data."""

    value: float
    low: float | None
    high: float | None


def clip_to_range(score: Estimate, metric: Metric) -> Estimate:
    """The estimate with bounds clipped to the range of the metric, which Student's t may exceed."""
    bounds = (score.low, score.high)
    low, high = (None if bound is None else min(metric.max_value, max(metric.min_value, bound)) for bound in bounds)
    return Estimate(score.value, low, high)


class BootstrapSamples(NamedTuple):
    """The score of one run and of resamples of its items; runs on the same items share the resamples."""

    value: float
    resamples: Array  # (R,); empty if there is only one item
    items: int  # number of items


class _RecordingSums(dict[str, Array]):
    """Sums that record which of them a metric uses."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        self.names.add(name)
        return super().__getitem__(name)


def _resample_runs(runs: Sequence[Mapping[str, Array]], samples: int, seed: int) -> Iterator[dict[str, Array]]:
    """The resampled sums of each run; as many runs at once as memory allows, because drawing takes longer than summing."""
    width = sum(int(np.prod(values.shape[1:])) for values in runs[0].values())
    size = len(next(iter(runs[0].values())))
    runs_per_chunk = max(1, CHUNK // (width * max(size, samples)))
    for low in range(0, len(runs), runs_per_chunk):
        part = runs[low : low + runs_per_chunk]
        statistics = {f"{i} {name}": values for i, run in enumerate(part) for name, values in run.items()}
        sums = resample(statistics, samples=samples, seed=seed)
        yield from ({name: sums[f"{i} {name}"] for name in run} for i, run in enumerate(part))


def bootstrap(
    runs: Sequence[ItemStatistics], functions: Mapping[str, Function], *, samples: int = SAMPLES, seed: int = 0
) -> list[dict[str, BootstrapSamples]]:
    """The scores of each run, and those of bootstrap resamples of the items, which all runs share."""
    scores, used, size = [], set(), len(runs[0].keys)
    for items in runs:
        sums = _RecordingSums(total(items.statistics))
        scores.append({name: function(sums).item() for name, function in functions.items()})
        used |= sums.names
    if size < 2:
        return [{name: BootstrapSamples(value, np.zeros(0), size) for name, value in values.items()} for values in scores]
    # only the statistics that are used: a reliability curve has 45 columns
    statistics = [{name: items.statistics[name] for name in sorted(used)} for items in runs]
    return [
        {name: BootstrapSamples(value, functions[name](sums), size) for name, value in values.items()}
        for values, sums in zip(scores, _resample_runs(statistics, samples, seed), strict=True)
    ]


class _Variance(NamedTuple):
    """A component of a variance, with its degrees of freedom."""

    value: float
    dof: float
    weight: float  # in the degrees of freedom of the sum

    @property
    def weighted(self) -> float:
        return self.weight * self.value


def _degrees_of_freedom(parts: Sequence[_Variance]) -> float:
    """Welch-Satterthwaite degrees of freedom of a sum of variances."""
    denominator = sum(part.weighted**2 / part.dof for part in parts)
    return sum(part.weighted for part in parts) ** 2 / denominator if denominator > 0 else math.inf


def _covariances(runs: Sequence[BootstrapSamples]) -> Array:
    """Covariances of the scores of runs over resamples of the items, (runs, runs)."""
    resamples = np.stack([run.resamples for run in runs])
    resamples = resamples[:, ~np.isnan(resamples).any(0)]  # NaN: a resample without any example of a class
    if resamples.shape[1] < 2:
        return np.zeros((len(runs), len(runs)))
    items = runs[0].items
    covariances: Array = np.atleast_2d(np.cov(resamples)) * items / (items - 1)
    return covariances


def _item_variance(covariances: Array) -> float:
    """The variance over items of an architecture: the mean covariance of two seeds; with one seed, its variance."""
    size = len(covariances)
    if size == 1:
        return float(covariances[0, 0])
    return float((covariances.sum() - np.trace(covariances)) / (size * (size - 1)))


def _are_finite(runs: Sequence[BootstrapSamples]) -> bool:
    return all(math.isfinite(run.value) and not np.isinf(run.resamples).any() for run in runs)


def estimate(runs: Sequence[BootstrapSamples]) -> Estimate:
    """The mean over seeds with its interval over seeds and items; for one run over items only, as in `weft evaluate`."""
    value = float(np.mean([run.value for run in runs]))
    if not runs[0].items > 1:
        return Estimate(value, None, None)
    if len(runs) == 1 or not _are_finite(runs):
        low, high = interval(np.mean([run.resamples for run in runs], 0)) or (None, None)
        return Estimate(value, low, high)
    seeds = _Variance(float(np.var([run.value for run in runs], ddof=1)) / len(runs), len(runs) - 1, SEED_WEIGHT)
    items = _Variance(max(0.0, _item_variance(_covariances(runs))), runs[0].items - 1, 1.0)
    margin = quantile(LEVEL, _degrees_of_freedom([seeds, items])) * math.sqrt(seeds.value + items.value)
    return Estimate(value, value - margin, value + margin)


def _seed_variances(a: Sequence[float], b: Sequence[float]) -> list[_Variance]:
    """S^2 / k of both sides. A side with one run gets the variance of the other side, which then counts once."""
    if min(len(a), len(b)) > 1:
        return [_Variance(float(np.var(side, ddof=1)) / len(side), len(side) - 1, SEED_WEIGHT) for side in (a, b)]
    larger = max(a, b, key=len)
    return [_Variance(float(np.var(larger, ddof=1)) * (1 / len(a) + 1 / len(b)), len(larger) - 1, SEED_WEIGHT)]


class _Contrast(NamedTuple):
    """The difference of two means and the components of its variance."""

    difference: float
    parts: list[_Variance]

    @property
    def variance(self) -> float:
        return sum(part.value for part in self.parts)


def _contrast(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> _Contrast | None:
    """The difference of the means with its variance components; None if a score is infinite or there is only one item."""
    if not _are_finite([*a, *b]) or a[0].items < 2:
        return None
    covariances, num_a = _covariances([*a, *b]), len(a)
    within = _item_variance(covariances[:num_a, :num_a]) + _item_variance(covariances[num_a:, num_a:])
    items = _Variance(max(0.0, within - 2 * float(covariances[:num_a, num_a:].mean())), a[0].items - 1, 1.0)
    values_a, values_b = ([run.value for run in side] for side in (a, b))
    # two single runs: the test is about these runs, not about other seeds
    seeds = _seed_variances(values_a, values_b) if len(a) + len(b) > 2 else []
    return _Contrast(float(np.mean(values_a) - np.mean(values_b)), [*seeds, items])


def contrast(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> Estimate:
    """The mean of a minus the mean of b with its 95% confidence interval (Student's t), over the shared items and, if there are
    several, over seeds."""
    result = _contrast(a, b)
    if result is None:
        return Estimate(float(np.mean([run.value for run in a]) - np.mean([run.value for run in b])), None, None)
    margin = quantile(LEVEL, _degrees_of_freedom(result.parts)) * math.sqrt(result.variance)
    return Estimate(result.difference, result.difference - margin, result.difference + margin)


def welch_test(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> float:
    """p-value of the difference between two architectures, at least one with several seeds; NaN if a score is infinite or there
    is only one item."""
    if len(a) + len(b) < 3:
        raise ValueError("welch_test: two single runs are tested by `randomization_test`")
    result = _contrast(a, b)
    if result is None:
        return math.nan
    if result.variance == 0:
        return 1.0 if result.difference == 0 else 0.0
    return two_sided_p(result.difference / math.sqrt(result.variance), _degrees_of_freedom(result.parts))


def welch_test_of_items(
    a: Sequence[ItemStatistics], b: Sequence[ItemStatistics], function: Function, *, samples: int = SAMPLES, seed: int = 0
) -> float:
    """The p-value of `welch_test` from the items of each seed: seeds are not paired, items are."""
    runs = [samples_of_run[""] for samples_of_run in bootstrap([*a, *b], {"": function}, samples=samples, seed=seed)]
    return welch_test(runs[: len(a)], runs[len(a) :])


def _flatten(statistics: Mapping[str, Array]) -> Array:
    """All statistics as the columns of one table (N, columns)."""
    return np.concatenate([np.asarray(values, np.float64).reshape(len(values), -1) for values in statistics.values()], 1)


def _unflatten(table: Array, statistics: Mapping[str, Array]) -> dict[str, Array]:
    """The inverse of `_flatten`, with the names and shapes of `statistics`."""
    widths = [int(np.prod(values.shape[1:])) for values in statistics.values()]
    parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
    columns = zip(statistics.items(), parts, strict=True)
    return {name: part.reshape(len(table), *values.shape[1:]) for (name, values), part in columns}


def _sum_exchanged(a: Array, b: Array, coins: Array) -> Array:
    """Sums (R, columns) of a (N, columns) where `coins` (R, N) is 0 and of b where it is 1; infinite if a summand is."""
    infinite = np.isinf(a) | np.isinf(b)
    finite_a, finite_b = np.where(infinite, 0.0, a), np.where(infinite, 0.0, b)
    total: Array = finite_a.sum(0) + coins @ (finite_b - finite_a)
    if infinite.any():
        num_infinite = (1 - coins) @ np.isinf(a) + coins @ np.isinf(b)
        total[num_infinite > 0] = math.inf
    return total


def is_exact(items: int, samples: int) -> bool:
    """Whether all combinations of exchanges are enumerated."""
    return (1 << min(items - 1, 62)) <= samples


def _exchanges(items: int, samples: int, seed: int) -> Iterator[Array]:
    """Which items are exchanged, (rows, N) at a time: every combination once if there are at most `samples`, else random ones.
    Exchanging the complement gives the same difference, so the last item is never exchanged."""
    chunk = max(1, CHUNK // items)
    if is_exact(items, samples):
        combinations = 2 ** (items - 1)
        for start in range(0, combinations, chunk):
            numbers = np.arange(start, min(start + chunk, combinations))
            yield (numbers[:, None] >> np.arange(items) & 1).astype(np.float64)
        return
    rng = np.random.default_rng(seed)
    for start in range(0, samples, chunk):
        yield rng.integers(0, 2, (min(chunk, samples - start), items)).astype(np.float64)


def randomization_test(
    a: ItemStatistics, b: ItemStatistics, function: Function, *, samples: int = SAMPLES, seed: int = 0
) -> float:
    """p-value of the difference between two runs on the same items, by approximate randomization; exact for few items."""
    sums = _RecordingSums(total(a.statistics))
    values = [function(sums).item(), function(total(b.statistics)).item()]
    used = sorted(sums.names)
    statistics = {name: a.statistics[name] for name in used}
    table_a, table_b = _flatten(statistics), _flatten({name: b.statistics[name] for name in used})
    observed, num_extreme, num_draws = abs(values[0] - values[1]), 0, 0
    if math.isnan(observed):
        return math.nan if any(map(math.isnan, values)) else 1.0  # both are infinite: no difference is observable
    for coins in _exchanges(len(table_a), samples, seed):
        sums_a, sums_b = _sum_exchanged(table_a, table_b, coins), _sum_exchanged(table_a, table_b, 1 - coins)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            differences = np.abs(function(_unflatten(sums_a, statistics)) - function(_unflatten(sums_b, statistics)))
        num_extreme += int((differences >= observed * (1 - 1e-9) - 1e-12).sum())  # sums in another order differ by rounding
        num_draws += len(coins)
    return num_extreme / num_draws if is_exact(len(table_a), samples) else (1 + num_extreme) / (1 + samples)


def smallest_p(seeds: tuple[int, int], items: int, *, samples: int = SAMPLES) -> float:
    """The smallest p that the test of two rows can give, however large the difference: if it is not below 0.05, there is too
    little test data."""
    if items < 2:
        return 1.0
    if max(seeds) > 1:
        return 0.0  # Student's t has no minimum
    return 2.0 ** (1 - items) if is_exact(items, samples) else 1 / (1 + samples)


def smallest_p_corrected(values: Sequence[float]) -> list[float]:
    """The smallest possible p-values after Holm's correction: each is multiplied by the number of values not below it."""
    return [min(1.0, value * sum(other >= value for other in values)) for value in values]


def holm(values: Sequence[float]) -> list[float]:
    """Holm-corrected p-values, so that the probability of any false positive is at most 5% (Holm 1979). NaN stays NaN."""
    order = sorted((i for i, value in enumerate(values) if not math.isnan(value)), key=lambda i: values[i])
    corrected, maximum = [math.nan] * len(values), 0.0
    for rank, i in enumerate(order):
        maximum = max(maximum, min(1.0, values[i] * (len(order) - rank)))
        corrected[i] = maximum
    return corrected
