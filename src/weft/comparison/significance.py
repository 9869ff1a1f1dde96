"""Is one better than the other, or was it luck? Of the test items, and, where there are several seeds, of the training.

Two single runs: approximate randomisation, paired over items (Noreen 1989; Riezler & Maxwell 2005). If the runs were alike, it
would not matter which of them gave which answer: the two answers to each item are exchanged by the toss of a coin, and p is
how often that gives a difference as large as the one seen. It says that these two models differ, not that their kinds do.

Two kinds, with several seeds: the score of seed s on the items at hand is taken to be

    Y(s) = mean of the kind + what the seed adds + what these items add for the kind + what they add for this seed of it.

Seeds of two kinds are drawn apart, items are the same for all. So the difference of two means over k and m seeds has the
variance

    V = S_a^2 / k + S_b^2 / m + I,

where S^2 is the sample variance over the seeds of a kind (it holds what items add for a seed, too), and I the variance of what
items add for a kind, from a bootstrap over items that all runs share: the mean covariance of two seeds of a, the same of b,
less twice that of one of each. To draw seeds with replacement, too, would give S^2 (k - 1) / k: with two seeds half of the
variance, and short tails where the truth has long ones; equal systems would be called different in up to 30 % of cases. Here
the difference over sqrt(V) is held against Student's t with the degrees of freedom of Welch and Satterthwaite,

    (sum of w v)^2 / sum of (w v)^2 / f,     v one of the three parts, f its degrees of freedom: k - 1, m - 1, items - 1,

with w = 2 for the two parts of seeds, and 1 for that of items. As they are (w = 1) a variance of two seeds that came out small
by chance would be believed where that of items is just as small. So equal systems are called different in 4 to 5 % of cases
with two seeds or more, whatever the share of seeds in the variance (2 % if it is all of it, and there are two). The worst case
left is 10 %, of two seeds of a kind with much luck in training against a kind with none. tests/test_significance.py simulates.

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
MIN_ITEMS = 2.0  # the weight of a variance over seeds where degrees of freedom are counted


class Estimate(NamedTuple):
    """A score, or the mean of several seeds', with its 95 % interval; None where there is too little to tell."""

    value: float
    low: float | None
    high: float | None


def clipped(found: Estimate, metric: Metric) -> Estimate:
    """With bounds that a score can have, from 0 on: Student's t knows nothing of them."""
    low, high = (None if bound is None else min(metric.most, max(0.0, bound)) for bound in (found.low, found.high))
    return Estimate(found.value, low, high)


class BootstrapSamples(NamedTuple):
    """The score of one run, and of resamples of its items: runs on the same items see the same draws."""

    value: float
    again: Array  # (R,); empty where there is one item only
    items: int


class _Asked(dict[str, Array]):
    """Sums that remember which of them a score looked at."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        self.names.add(name)
        return super().__getitem__(name)


def _drawn(runs: Sequence[Mapping[str, Array]], samples: int, seed: int) -> Iterator[dict[str, Array]]:
    """The resampled sums of each run; as many runs at once as memory allows, for to draw takes longer than to add up."""
    width = sum(int(np.prod(values.shape[1:])) for values in runs[0].values())
    size = len(next(iter(runs[0].values())))
    together = max(1, CHUNK // (width * max(size, samples)))
    for low in range(0, len(runs), together):
        part = runs[low : low + together]
        named = {f"{at} {name}": values for at, run in enumerate(part) for name, values in run.items()}
        again = resample(named, samples=samples, seed=seed)
        yield from ({name: again[f"{at} {name}"] for name in run} for at, run in enumerate(part))


def resampled(
    runs: Sequence[ItemStatistics], functions: Mapping[str, Function], *, samples: int = SAMPLES, seed: int = 0
) -> list[dict[str, BootstrapSamples]]:
    """Of each run on the same items each score, and that of resamples."""
    found, used, size = [], set(), len(runs[0].keys)
    for items in runs:
        options = _Asked(total(items.statistics))
        found.append({name: function(options).item() for name, function in functions.items()})
        used |= options.names
    if size < 2:
        return [{name: BootstrapSamples(value, np.zeros(0), size) for name, value in values.items()} for values in found]
    # only what is looked at: a reliability curve is 45 columns wide
    kept = [{name: items.statistics[name] for name in sorted(used)} for items in runs]
    return [
        {name: BootstrapSamples(value, functions[name](again), size) for name, value in values.items()}
        for values, again in zip(found, _drawn(kept, samples, seed), strict=True)
    ]


class _Part(NamedTuple):
    """A part of a variance."""

    value: float
    freedom: float
    weight: float

    @property
    def weighed(self) -> float:
        return self.weight * self.value


def _freedom(parts: Sequence[_Part]) -> float:
    below = sum(part.weighed**2 / part.freedom for part in parts)
    return sum(part.weighed for part in parts) ** 2 / below if below > 0 else math.inf


def _covariances(runs: Sequence[BootstrapSamples]) -> Array:
    """(runs, runs), over draws of items."""
    again = np.stack([run.again for run in runs])
    again = again[:, ~np.isnan(again).any(0)]  # a draw that held nothing of a unit
    if again.shape[1] < 2:
        return np.zeros((len(runs), len(runs)))
    items = runs[0].items
    found: Array = np.atleast_2d(np.cov(again)) * items / (items - 1)
    return found


def _within(covariances: Array) -> float:
    """What items add for a kind: the mean covariance of two of its seeds; of one seed its variance, for want of better."""
    size = len(covariances)
    if size == 1:
        return float(covariances[0, 0])
    return float((covariances.sum() - np.trace(covariances)) / (size * (size - 1)))


def _finite(runs: Sequence[BootstrapSamples]) -> bool:
    return all(math.isfinite(run.value) and not np.isinf(run.again).any() for run in runs)


def estimate(runs: Sequence[BootstrapSamples]) -> Estimate:
    """The mean of the seeds with its interval over seeds and items; of one run, over items, as `evaluate` gives it."""
    value = float(np.mean([run.value for run in runs]))
    if not runs[0].items > 1:
        return Estimate(value, None, None)
    if len(runs) == 1 or not _finite(runs):
        low, high = interval(np.mean([run.again for run in runs], 0)) or (None, None)
        return Estimate(value, low, high)
    seeds = _Part(float(np.var([run.value for run in runs], ddof=1)) / len(runs), len(runs) - 1, MIN_ITEMS)
    items = _Part(max(0.0, _within(_covariances(runs))), runs[0].items - 1, 1.0)
    reach = quantile(LEVEL, _freedom([seeds, items])) * math.sqrt(seeds.value + items.value)
    return Estimate(value, value - reach, value + reach)


def _seed_parts(a: Sequence[float], b: Sequence[float]) -> list[_Part]:
    """S^2 / k of both sides; a side of one run has the variance of the other, which is then counted once."""
    if min(len(a), len(b)) > 1:
        return [_Part(float(np.var(side, ddof=1)) / len(side), len(side) - 1, MIN_ITEMS) for side in (a, b)]
    several = max(a, b, key=len)
    return [_Part(float(np.var(several, ddof=1)) * (1 / len(a) + 1 / len(b)), len(several) - 1, MIN_ITEMS)]


class _Contrast(NamedTuple):
    """The difference of two means, and the parts of its variance."""

    distance: float
    parts: list[_Part]

    @property
    def variance(self) -> float:
        return sum(part.value for part in self.parts)


def _contrast(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> _Contrast | None:
    """None where a score is infinite or there is one item only."""
    if not _finite([*a, *b]) or a[0].items < 2:
        return None
    covariances, k = _covariances([*a, *b]), len(a)
    shared = _within(covariances[:k, :k]) + _within(covariances[k:, k:]) - 2 * float(covariances[:k, k:].mean())
    left, right = ([run.value for run in side] for side in (a, b))
    seeds = _seed_parts(left, right) if len(a) + len(b) > 2 else []  # two runs: about these, whatever other seeds do
    return _Contrast(float(np.mean(left) - np.mean(right)), [*seeds, _Part(max(0.0, shared), a[0].items - 1, 1.0)])


def contrast(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> Estimate:
    """How far the mean of a is above that of b, with its 95 % interval (Student's t): over items, which both share, and over
    seeds where there are several."""
    found = _contrast(a, b)
    if found is None:
        return Estimate(float(np.mean([run.value for run in a]) - np.mean([run.value for run in b])), None, None)
    reach = quantile(LEVEL, _freedom(found.parts)) * math.sqrt(found.variance)
    return Estimate(found.distance, found.distance - reach, found.distance + reach)


def difference(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> float:
    """p of two kinds, one of them at least with several seeds; NaN where a score is infinite or there is one item only."""
    if len(a) + len(b) < 3:
        raise ValueError("difference: two single runs are tested by `paired`")
    found = _contrast(a, b)
    if found is None:
        return math.nan
    if found.variance == 0:
        return 1.0 if found.distance == 0 else 0.0
    return two_sided_p(found.distance / math.sqrt(found.variance), _freedom(found.parts))


def hierarchical(
    a: Sequence[ItemStatistics], b: Sequence[ItemStatistics], function: Function, *, samples: int = SAMPLES, seed: int = 0
) -> float:
    """p of two kinds, each with the items of its seeds: over seeds, which are not paired, and items, which are."""
    runs = [found[""] for found in resampled([*a, *b], {"": function}, samples=samples, seed=seed)]
    return difference(runs[: len(a)], runs[len(a) :])


def _flat(statistics: Mapping[str, Array]) -> Array:
    return np.concatenate([np.asarray(values, np.float64).reshape(len(values), -1) for values in statistics.values()], 1)


def _unflat(table: Array, statistics: Mapping[str, Array]) -> dict[str, Array]:
    widths = [int(np.prod(values.shape[1:])) for values in statistics.values()]
    parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
    named = zip(statistics.items(), parts, strict=True)
    return {name: part.reshape(len(table), *values.shape[1:]) for (name, values), part in named}


def _swap(a: Array, b: Array, coins: Array) -> Array:
    """Sums (R, columns) of a (N, columns) where a coin (R, N) left an item in place, else of b; infinite where one is."""
    infinite = np.isinf(a) | np.isinf(b)
    plain_a, plain_b = np.where(infinite, 0.0, a), np.where(infinite, 0.0, b)
    total: Array = plain_a.sum(0) + coins @ (plain_b - plain_a)
    if infinite.any():
        hits = (1 - coins) @ np.isinf(a) + coins @ np.isinf(b)
        total[hits > 0] = math.inf
    return total


def _coins(items: int, samples: int, seed: int) -> Iterator[Array]:
    """Which items are exchanged, (rows, N) at a time: every way once where there are no more ways than samples, else so many
    throws. To exchange all others gives the same difference, so the last item stays."""
    chunk = max(1, CHUNK // items)
    if is_exact(items, samples):
        ways = 2 ** (items - 1)
        for start in range(0, ways, chunk):
            numbers = np.arange(start, min(start + chunk, ways))
            yield (numbers[:, None] >> np.arange(items) & 1).astype(np.float64)
        return
    rng = np.random.default_rng(seed)
    for start in range(0, samples, chunk):
        yield rng.integers(0, 2, (min(chunk, samples - start), items)).astype(np.float64)


def is_exact(items: int, samples: int) -> bool:
    """Whether every exchange of items is looked at."""
    return (1 << min(items - 1, 62)) <= samples


def paired(a: ItemStatistics, b: ItemStatistics, function: Function, *, samples: int = SAMPLES, seed: int = 0) -> float:
    """p of two runs on the same items, by approximate randomisation; exact where items are few."""
    options = _Asked(total(a.statistics))
    values = [function(options).item(), function(total(b.statistics)).item()]
    used = sorted(options.names)
    shape = {name: a.statistics[name] for name in used}
    left, right = _flat(shape), _flat({name: b.statistics[name] for name in used})
    seen, hits, done = abs(values[0] - values[1]), 0, 0
    if math.isnan(seen):
        return math.nan if any(map(math.isnan, values)) else 1.0  # both are infinite: not different, for all one can see
    for coins in _coins(len(left), samples, seed):
        ours, theirs = _swap(left, right, coins), _swap(left, right, 1 - coins)
        with np.errstate(invalid="ignore"):  # infinite less infinite
            apart = np.abs(function(_unflat(ours, shape)) - function(_unflat(theirs, shape)))
        # sums in another order stray by a rounding
        hits, done = hits + int((apart >= seen * (1 - 1e-9) - 1e-12).sum()), done + len(coins)
    return hits / done if is_exact(len(left), samples) else (1 + hits) / (1 + samples)


def smallest_p(seeds: tuple[int, int], items: int, *, samples: int = SAMPLES) -> float:
    """The least p that the test of two rows with so many seeds could give, however far they are apart: where it is not below
    0.05, there is too little test data to tell anything."""
    if items < 2:
        return 1.0
    if max(seeds) > 1:
        return 0.0  # Student's t has no least one
    return 2.0 ** (1 - items) if is_exact(items, samples) else 1 / (1 + samples)


def smallest_p_overall(each: Sequence[float]) -> list[float]:
    """The same after Holm's correction: whoever can have less comes before, and the others count."""
    return [min(1.0, one * sum(other >= one for other in each)) for one in each]


def holm(values: Sequence[float]) -> list[float]:
    """p values of several tests, corrected so that 5 % is the chance of any false call among them (Holm 1979); NaN stays."""
    order = sorted((at for at, value in enumerate(values) if not math.isnan(value)), key=lambda at: values[at])
    found, maximum = [math.nan] * len(values), 0.0
    for place, at in enumerate(order):
        maximum = max(maximum, min(1.0, values[at] * (len(order) - place)))
        found[at] = maximum
    return found
