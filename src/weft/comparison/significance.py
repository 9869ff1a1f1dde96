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
two seeds half of the variance, and short tails where the true ones are long; equal systems would be called different in up to
30% of cases. Instead, the difference over sqrt(V) is compared with Student's t with the degrees of freedom of Welch and
Satterthwaite,

    (sum of w v)^2 / sum of (w v)^2 / f,     v one of the three parts, f its degrees of freedom: k - 1, m - 1, items - 1,

with w = 2 for the two parts of seeds and 1 for that of items. Unweighted (w = 1), a variance of two seeds that is small by
chance would be trusted where that of items is just as small. With these weights, equal systems are called different in 4 to
5% of cases with two seeds or more, whatever the fraction of seeds in the variance (2% if it is all of it and there are two
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


def clipped(score: Estimate, metric: Metric) -> Estimate:
    """The estimate with bounds within the range of the metric, which Student's t does not know."""
    low, high = (None if bound is None else min(metric.max_value, max(0.0, bound)) for bound in (score.low, score.high))
    return Estimate(score.value, low, high)


class BootstrapSamples(NamedTuple):
    """The score of one run and of resamples of its items; runs on the same items share the resamples."""

    value: float
    again: Array  # (R,); empty if there is only one item
    items: int


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
        named = {f"{at} {name}": values for at, run in enumerate(part) for name, values in run.items()}
        again = resample(named, samples=samples, seed=seed)
        yield from ({name: again[f"{at} {name}"] for name in run} for at, run in enumerate(part))


def resampled(
    runs: Sequence[ItemStatistics], functions: Mapping[str, Function], *, samples: int = SAMPLES, seed: int = 0
) -> list[dict[str, BootstrapSamples]]:
    """The scores of each run, and of resamples of the items that all runs share."""
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
        {name: BootstrapSamples(value, functions[name](again), size) for name, value in values.items()}
        for values, again in zip(scores, _resample_runs(statistics, samples, seed), strict=True)
    ]


class _Variance(NamedTuple):
    """A component of a variance."""

    value: float
    freedom: float
    weight: float

    @property
    def weighted(self) -> float:
        return self.weight * self.value


def _freedom(parts: Sequence[_Variance]) -> float:
    below = sum(part.weighted**2 / part.freedom for part in parts)
    return sum(part.weighted for part in parts) ** 2 / below if below > 0 else math.inf


def _covariances(runs: Sequence[BootstrapSamples]) -> Array:
    """(runs, runs), over draws of items."""
    again = np.stack([run.again for run in runs])
    again = again[:, ~np.isnan(again).any(0)]  # resamples without any example of a class
    if again.shape[1] < 2:
        return np.zeros((len(runs), len(runs)))
    items = runs[0].items
    covariances: Array = np.atleast_2d(np.cov(again)) * items / (items - 1)
    return covariances


def _within(covariances: Array) -> float:
    """The variance over items of an architecture: the mean covariance of two of its seeds; with one seed, its variance."""
    size = len(covariances)
    if size == 1:
        return float(covariances[0, 0])
    return float((covariances.sum() - np.trace(covariances)) / (size * (size - 1)))


def _finite(runs: Sequence[BootstrapSamples]) -> bool:
    return all(math.isfinite(run.value) and not np.isinf(run.again).any() for run in runs)


def estimate(runs: Sequence[BootstrapSamples]) -> Estimate:
    """The mean over seeds with its interval over seeds and items; for one run over items, as `evaluate` gives it."""
    value = float(np.mean([run.value for run in runs]))
    if not runs[0].items > 1:
        return Estimate(value, None, None)
    if len(runs) == 1 or not _finite(runs):
        low, high = interval(np.mean([run.again for run in runs], 0)) or (None, None)
        return Estimate(value, low, high)
    seeds = _Variance(float(np.var([run.value for run in runs], ddof=1)) / len(runs), len(runs) - 1, SEED_WEIGHT)
    items = _Variance(max(0.0, _within(_covariances(runs))), runs[0].items - 1, 1.0)
    margin = quantile(LEVEL, _freedom([seeds, items])) * math.sqrt(seeds.value + items.value)
    return Estimate(value, value - margin, value + margin)


def _seed_parts(a: Sequence[float], b: Sequence[float]) -> list[_Variance]:
    """S^2 / k of both sides; a side with one run gets the variance of the other, which then counts once."""
    if min(len(a), len(b)) > 1:
        return [_Variance(float(np.var(side, ddof=1)) / len(side), len(side) - 1, SEED_WEIGHT) for side in (a, b)]
    several = max(a, b, key=len)
    return [_Variance(float(np.var(several, ddof=1)) * (1 / len(a) + 1 / len(b)), len(several) - 1, SEED_WEIGHT)]


class _Contrast(NamedTuple):
    """The difference of two means and the components of its variance."""

    distance: float
    parts: list[_Variance]

    @property
    def variance(self) -> float:
        return sum(part.value for part in self.parts)


def _contrast(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> _Contrast | None:
    """None if a score is infinite or there is only one item."""
    if not _finite([*a, *b]) or a[0].items < 2:
        return None
    covariances, k = _covariances([*a, *b]), len(a)
    shared = _within(covariances[:k, :k]) + _within(covariances[k:, k:]) - 2 * float(covariances[:k, k:].mean())
    left, right = ([run.value for run in side] for side in (a, b))
    seeds = (
        _seed_parts(left, right) if len(a) + len(b) > 2 else []
    )  # two single runs: the test is about these runs, not about other seeds
    return _Contrast(float(np.mean(left) - np.mean(right)), [*seeds, _Variance(max(0.0, shared), a[0].items - 1, 1.0)])


def contrast(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> Estimate:
    """The mean of a minus the mean of b with its 95% confidence interval (Student's t), over the shared items and, if there are
    several, over seeds."""
    result = _contrast(a, b)
    if result is None:
        return Estimate(float(np.mean([run.value for run in a]) - np.mean([run.value for run in b])), None, None)
    margin = quantile(LEVEL, _freedom(result.parts)) * math.sqrt(result.variance)
    return Estimate(result.distance, result.distance - margin, result.distance + margin)


def difference(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> float:
    """p of two architectures, at least one with several seeds; NaN if a score is infinite or there is only one item."""
    if len(a) + len(b) < 3:
        raise ValueError("difference: two single runs are tested by `paired`")
    result = _contrast(a, b)
    if result is None:
        return math.nan
    if result.variance == 0:
        return 1.0 if result.distance == 0 else 0.0
    return two_sided_p(result.distance / math.sqrt(result.variance), _freedom(result.parts))


def hierarchical(
    a: Sequence[ItemStatistics], b: Sequence[ItemStatistics], function: Function, *, samples: int = SAMPLES, seed: int = 0
) -> float:
    """p of two architectures, each with the items of its seeds: over seeds, which are not paired, and items, which are."""
    runs = [samples_of_run[""] for samples_of_run in resampled([*a, *b], {"": function}, samples=samples, seed=seed)]
    return difference(runs[: len(a)], runs[len(a) :])


def _flat(statistics: Mapping[str, Array]) -> Array:
    return np.concatenate([np.asarray(values, np.float64).reshape(len(values), -1) for values in statistics.values()], 1)


def _unflat(table: Array, statistics: Mapping[str, Array]) -> dict[str, Array]:
    widths = [int(np.prod(values.shape[1:])) for values in statistics.values()]
    parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
    named = zip(statistics.items(), parts, strict=True)
    return {name: part.reshape(len(table), *values.shape[1:]) for (name, values), part in named}


def _swap(a: Array, b: Array, coins: Array) -> Array:
    """Sums (R, columns) of a (N, columns) where a coin (R, N) is 0, of b where it is 1; infinite if an item is."""
    infinite = np.isinf(a) | np.isinf(b)
    plain_a, plain_b = np.where(infinite, 0.0, a), np.where(infinite, 0.0, b)
    total: Array = plain_a.sum(0) + coins @ (plain_b - plain_a)
    if infinite.any():
        hits = (1 - coins) @ np.isinf(a) + coins @ np.isinf(b)
        total[hits > 0] = math.inf
    return total


def _coins(items: int, samples: int, seed: int) -> Iterator[Array]:
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


def is_exact(items: int, samples: int) -> bool:
    """Whether all combinations of exchanges are enumerated."""
    return (1 << min(items - 1, 62)) <= samples


def paired(a: ItemStatistics, b: ItemStatistics, function: Function, *, samples: int = SAMPLES, seed: int = 0) -> float:
    """p of two runs on the same items by approximate randomization; exact if there are few items."""
    sums = _RecordingSums(total(a.statistics))
    values = [function(sums).item(), function(total(b.statistics)).item()]
    used = sorted(sums.names)
    shape = {name: a.statistics[name] for name in used}
    left, right = _flat(shape), _flat({name: b.statistics[name] for name in used})
    observed, hits, done = abs(values[0] - values[1]), 0, 0
    if math.isnan(observed):
        return math.nan if any(map(math.isnan, values)) else 1.0  # both are infinite: no difference is observable
    for coins in _coins(len(left), samples, seed):
        ours, theirs = _swap(left, right, coins), _swap(left, right, 1 - coins)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            differences = np.abs(function(_unflat(ours, shape)) - function(_unflat(theirs, shape)))
        # sums in another order differ by rounding
        hits, done = hits + int((differences >= observed * (1 - 1e-9) - 1e-12).sum()), done + len(coins)
    return hits / done if is_exact(len(left), samples) else (1 + hits) / (1 + samples)


def smallest_p(seeds: tuple[int, int], items: int, *, samples: int = SAMPLES) -> float:
    """The smallest p that the test of two rows can give, however large the difference: if it is not below 0.05, there is too
    little test data."""
    if items < 2:
        return 1.0
    if max(seeds) > 1:
        return 0.0  # Student's t has no minimum
    return 2.0 ** (1 - items) if is_exact(items, samples) else 1 / (1 + samples)


def smallest_p_overall(each: Sequence[float]) -> list[float]:
    """The smallest p values after Holm's correction: smaller ones come first, the others count."""
    return [min(1.0, value * sum(other >= value for other in each)) for value in each]


def holm(values: Sequence[float]) -> list[float]:
    """Holm-corrected p values: the probability of any false positive is at most 5% (Holm 1979); NaN stays."""
    order = sorted((at for at, value in enumerate(values) if not math.isnan(value)), key=lambda at: values[at])
    corrected, maximum = [math.nan] * len(values), 0.0
    for rank, at in enumerate(order):
        maximum = max(maximum, min(1.0, values[at] * (len(order) - rank)))
        corrected[at] = maximum
    return corrected
