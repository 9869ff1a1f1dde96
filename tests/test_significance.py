"""Significance tests: comparison with independent calculations, and a false-positive rate of 5%."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from fake_evaluations import simulate_runs
from scipy import stats

from weft.comparison import significance
from weft.comparison.significance import (
    BootstrapSamples,
    bootstrap,
    contrast,
    estimate,
    holm,
    randomization_test,
    smallest_p,
    smallest_p_corrected,
    welch_test,
    welch_test_of_items,
)
from weft.comparison.student_t import quantile, two_sided_p
from weft.metrics.items import ItemStatistics
from weft.metrics.lm import LANGUAGE
from weft.metrics.seq2seq import TRANSLATION, seq2seq_items

RATE = LANGUAGE[0].compute
BLEU = next(metric.compute for metric in TRANSLATION if metric.name == "bleu")


def mean_items(values: np.ndarray) -> ItemStatistics:
    """Items whose score is the mean of `values` (N,)."""
    return ItemStatistics(np.arange(len(values)), {"nats": values.astype(np.float64), "tokens": np.ones(len(values))})


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3.7, 10, 400, 9e4, 1e9])
def test_students_t_matches_scipy(freedom):
    for t in (0.0, 0.01, 0.5, 1.0, 2.0, 5.0, 30.0):
        assert two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-4, abs=1e-12)
        assert two_sided_p(-t, freedom) == two_sided_p(t, freedom)
    assert quantile(0.05, freedom) == pytest.approx(stats.t.isf(0.025, freedom), rel=1e-4)
    assert two_sided_p(math.inf, freedom) == 0.0


# ---- two runs


def test_randomization_test_approximates_exact_enumeration():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 10), rng.normal(0.6, 1, 10)
    observed = abs((a - b).mean())
    swaps = [abs(((a - b) * np.array(signs)).mean()) for signs in itertools.product((1, -1), repeat=10)]
    exact = np.mean([value >= observed - 1e-12 for value in swaps])
    assert randomization_test(mean_items(a), mean_items(b), RATE, samples=500) == pytest.approx(exact, abs=0.03)
    # if there are no more exchanges than samples, each is evaluated once
    assert randomization_test(mean_items(a), mean_items(b), RATE, samples=512) == exact


def test_equal_runs_are_not_significant_and_uniformly_better_runs_are():
    rng = np.random.default_rng(0)
    a = mean_items(rng.normal(0, 1, 40))
    assert randomization_test(a, a, RATE) == 1.0
    assert randomization_test(a, mean_items(a.statistics["nats"] + 0.5), RATE, samples=400) == 1 / 401


def test_corpus_level_metrics_are_tested_too():
    lines = [f"the cat number {index} sat on a mat of {index}" for index in range(30)]
    worse = [line.replace("sat on", "was by") for line in lines]
    mixed = [w if index < 2 else line for index, (w, line) in enumerate(zip(worse, lines, strict=True))]
    correct, wrong, nearly = (seq2seq_items(outputs, lines) for outputs in (lines, worse, mixed))
    assert randomization_test(correct, wrong, BLEU, samples=300) < 0.01
    assert randomization_test(correct, nearly, BLEU, samples=300) > 0.2
    assert randomization_test(correct, correct, BLEU, samples=50) == 1.0


def test_infinite_scores():
    """One impossible line may be chance; half of the lines are not."""
    rng = np.random.default_rng(0)
    a = rng.normal(3, 1, 30)
    changed, half = a.copy(), a.copy()
    changed[4], half[::2] = math.inf, math.inf
    assert randomization_test(mean_items(a), mean_items(changed), RATE, samples=200) == 1.0
    assert randomization_test(mean_items(a), mean_items(half), RATE, samples=200) < 0.01
    assert randomization_test(mean_items(half), mean_items(half), RATE, samples=200) == 1.0
    assert math.isnan(welch_test_of_items([mean_items(a)] * 2, [mean_items(half)] * 2, RATE, samples=50))


# ---- two kinds


def test_variance_is_that_of_a_crossed_design():
    """By hand: the score is a mean, so the covariance of two runs over resampled items is that of their items divided by N."""
    rng = np.random.default_rng(3)
    shared = rng.normal(0, 1, 200)
    a = [shared + rng.normal(0, 0.5, 200) + luck for luck in (0.1, -0.1)]
    b = [shared + rng.normal(0, 0.7, 200) + 0.2 + luck for luck in (0.0, 0.15, -0.05)]
    cov = np.cov(np.stack([*a, *b])) / 200
    within_b = (cov[2, 3] + cov[2, 4] + cov[3, 4]) / 3
    items = cov[0, 1] + within_b - 2 * cov[:2, 2:].mean()
    seeds = [np.var([x.mean() for x in a], ddof=1) / 2, np.var([x.mean() for x in b], ddof=1) / 3]
    weighed = [2 * seeds[0], 2 * seeds[1], items]
    freedom = sum(weighed) ** 2 / (weighed[0] ** 2 / 1 + weighed[1] ** 2 / 2 + weighed[2] ** 2 / 199)
    distance = np.mean([x.mean() for x in a]) - np.mean([x.mean() for x in b])
    by_hand = 2 * stats.t.sf(abs(distance) / math.sqrt(sum(seeds) + items), freedom)
    assert 0.01 < by_hand < 0.9
    actual = welch_test_of_items([mean_items(x) for x in a], [mean_items(x) for x in b], RATE, samples=20_000)
    assert actual == pytest.approx(by_hand, abs=0.01)


def test_runs_without_training_variance():
    """n-gram models have no seeds, so all runs are equal and only the variance of items remains."""
    rng = np.random.default_rng(5)
    a, b = mean_items(rng.normal(0, 1, 100)), mean_items(rng.normal(0, 1, 100))
    assert welch_test_of_items([a, a], [a, a, a], RATE, samples=100) == 1.0
    p = welch_test_of_items([a, a, a], [b, b, b], RATE, samples=4000)
    assert p == pytest.approx(randomization_test(a, b, RATE, samples=4000), abs=0.05)
    constant = mean_items(np.ones(20))
    assert welch_test_of_items([constant] * 2, [mean_items(np.full(20, 2.0))] * 2, RATE, samples=20) == 0.0


def test_a_single_run_borrows_the_seed_variance_of_the_other_system():
    runs = [BootstrapSamples(value, np.zeros(3), 10) for value in (1.0, 1.2, 1.4, 2.0)]
    p = welch_test(runs[3:], runs[:3])
    assert p == pytest.approx(2 * stats.t.sf(0.8 / math.sqrt(0.04 * (1 + 1 / 3)), 2), rel=1e-6)
    with pytest.raises(ValueError, match="welch_test: two single runs are tested by `randomization_test`"):
        welch_test(runs[:1], runs[1:2])
    assert math.isnan(welch_test([BootstrapSamples(1.0, np.zeros(0), 1)] * 2, [BootstrapSamples(2.0, np.zeros(0), 1)]))


def simulated(cases: int, sides: tuple[int, int], **options: float) -> float:
    """How often two systems on the same lines are significantly different; their true difference is `apart`."""
    rng, called, apart = np.random.default_rng(7), 0, options.pop("apart", 0.0)
    for _ in range(cases):
        tokens, difficulty = rng.integers(3, 40, 50).astype(np.float64), rng.normal(0, 0.6, 50)
        a = simulate_runs(rng, tokens, difficulty, seeds=sides[0], **options)
        b = simulate_runs(rng, tokens, difficulty, seeds=sides[1], mean=2.0 + apart, **options)
        p = randomization_test(a[0], b[0], RATE, samples=99) if sides == (1, 1) else welch_test_of_items(a, b, RATE, samples=60)
        called += p < 0.05
    return called / cases


# the items alone give a standard deviation of 0.06 in the difference of two runs; that of seeds is smaller, equal and larger
@pytest.mark.parametrize(
    ("sides", "seed_sd"),
    [
        ((1, 1), 0.0),
        ((2, 2), 0.04),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [((3, 3), 0.04), ((3, 3), 0.1), ((1, 3), 0.04)]),
    ],
)
def test_false_positive_rate_is_5_percent(sides, seed_sd):
    assert 0.03 <= simulated(1000, sides, seed_sd=seed_sd) <= 0.07


@pytest.mark.parametrize(("sides", "seed_sd"), [((1, 1), 0.0), ((2, 2), 0.02), ((3, 3), 0.04)])
def test_a_clear_difference_is_significant(sides, seed_sd):
    assert simulated(60, sides, seed_sd=seed_sd, apart=0.4) > 0.9


def test_simpler_tests_have_too_many_false_positives():
    """Resampling two seeds with replacement halves the variance. Uncorrected Welch degrees of freedom trust two seeds that
    agree by chance. The weights make the difference."""
    rng = np.random.default_rng(0)
    runs, items = rng.normal(0, 1, (2, 20_000, 2)), 0.03
    apart = runs.mean(2)[0] - runs.mean(2)[1] + rng.normal(0, math.sqrt(items), 20_000)
    naive = 2 * stats.norm.sf(np.abs(apart) / np.sqrt((runs.var(2) / 2).sum(0) + items))
    assert (naive < 0.05).mean() > 0.2
    # one system with seed variance, one without
    one = runs[0].mean(1) + rng.normal(0, math.sqrt(items), 20_000)
    seeds = runs[0].var(1, ddof=1) / 2

    def called(weight: float) -> float:
        freedom = (weight * seeds + items) ** 2 / (weight * seeds) ** 2
        return float((2 * stats.t.sf(np.abs(one) / np.sqrt(seeds + items), freedom) < 0.05).mean())

    assert called(1.0) > 0.12
    assert called(2.0) < 0.11


def test_interval_coverage_is_95_percent():
    rng, covered = np.random.default_rng(2), 0
    for _ in range(400):
        tokens = rng.integers(3, 40, 50).astype(np.float64)
        runs = simulate_runs(rng, tokens, np.zeros(50), seeds=3, seed_sd=0.05)
        actual = estimate([run[""] for run in bootstrap(runs, {"": RATE}, samples=60)])
        covered += actual.low <= 2.0 <= actual.high
    assert 0.92 <= covered / 400 <= 0.98


def test_interval_of_one_run_equals_that_of_evaluate():
    from weft.metrics.lm import EvaluationSetup, language_scores

    items = simulate_runs(np.random.default_rng(0), np.full(40, 7.0), np.zeros(40))[0]
    score = language_scores(items, EvaluationSetup("reset:line", "line", "abc"))[0]
    assert estimate([bootstrap([items], {"": RATE})[0][""]]) == (score.value, score.low, score.high)


def test_one_item_has_no_interval():
    assert estimate([bootstrap([mean_items(np.ones(1))], {"": RATE})[0][""]]) == (1.0, None, None)


def test_resampling_is_the_same_for_one_run_and_several(monkeypatch):
    rng = np.random.default_rng(0)
    runs = [mean_items(rng.normal(0, 1, 30)) for _ in range(3)]
    together = bootstrap(runs, {"": RATE}, samples=50)
    monkeypatch.setattr(significance, "CHUNK", 1)
    for run, other in zip(together, bootstrap(runs, {"": RATE}, samples=50), strict=True):
        np.testing.assert_allclose(run[""].resamples, other[""].resamples)


# ---- how small a p can be


@pytest.mark.parametrize("items", [1, 2, 3, 5, 6, 8, 10])
def test_smallest_p_of_two_runs(items):
    """Only the identity and the full exchange reach the observed difference: 2 of 2^n."""
    rng = np.random.default_rng(items)
    a = rng.normal(0, 1, items)
    worse = a + rng.uniform(1, 2, items)
    exact = 2 / 2**items
    assert randomization_test(mean_items(a), mean_items(worse), RATE) == pytest.approx(exact)
    assert smallest_p((1, 1), items) == pytest.approx(exact)


def test_smallest_p_with_many_items_is_limited_by_samples():
    rng = np.random.default_rng(0)
    a = rng.normal(0, 1, 40)
    assert (
        randomization_test(mean_items(a), mean_items(a + 1), RATE, samples=400)
        == smallest_p((1, 1), 40, samples=400)
        == 1 / 401
    )
    assert smallest_p((2, 1), 6) == 0.0  # Student's t has no smallest p
    assert smallest_p((2, 2), 1) == 1.0  # but one item has no information


def test_smallest_p_of_several_rows_is_holm_corrected():
    assert smallest_p_corrected([0.03125, 0.03125]) == [0.0625, 0.0625]
    assert smallest_p_corrected([0.001] * 3) == pytest.approx([0.003] * 3)
    # rows with a smaller minimum come first
    assert smallest_p_corrected([0.0, 0.03, 0.03, 1.0]) == pytest.approx([0.0, 0.09, 0.09, 1.0])
    for values in ([0.03125] * 2, [0.002, 0.01, 0.01]):
        assert all(a >= b for a, b in zip(holm(values), smallest_p_corrected(values), strict=True))
    assert smallest_p_corrected([]) == []


# ---- how large a difference is


def test_interval_of_a_difference_is_a_paired_t_interval():
    """With scipy: the score is a mean, so its difference has the interval of the mean of differences."""
    rng = np.random.default_rng(3)
    shared = rng.normal(0, 5, 60)
    a, b = shared + rng.normal(0, 1, 60), shared + rng.normal(0.5, 1, 60)
    one, other = ([run[""]] for run in bootstrap([mean_items(a), mean_items(b)], {"": RATE}, samples=20_000))
    actual = contrast(one, other)
    low, high = stats.t.interval(0.95, 59, (a - b).mean(), stats.sem(a - b))
    assert actual == pytest.approx(((a - b).mean(), low, high), abs=0.01)
    # the interval of a single row is far wider: items differ more than models do
    alone = estimate(one)
    assert alone.high - alone.low > 3 * (high - low)


def test_a_difference_without_an_interval():
    one, other = ([BootstrapSamples(value, np.zeros(0), 1)] for value in (1.0, 3.0))
    assert contrast(one, other) == (-2.0, None, None)
    rng = np.random.default_rng(0)
    infinite = BootstrapSamples(math.inf, np.full(9, math.inf), 9)
    assert contrast([BootstrapSamples(1.0, rng.normal(1, 1, 9), 9)], [infinite]) == (-math.inf, None, None)


@pytest.mark.parametrize(
    ("sides", "seed_sd", "items"),
    [
        ((1, 1), 0.0, 8),
        ((2, 2), 0.04, 50),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [((1, 1), 0.0, 50), ((3, 3), 0.1, 50), ((1, 3), 0.04, 50)]),
    ],
)
def test_coverage_of_the_interval_of_a_difference_is_95_percent(sides, seed_sd, items):
    rng, covered = np.random.default_rng(11), 0
    for _ in range(500):
        tokens, difficulty = rng.integers(3, 40, items).astype(np.float64), rng.normal(0, 0.6, items)
        a = simulate_runs(rng, tokens, difficulty, seeds=sides[0], seed_sd=seed_sd, mean=2.3)
        b = simulate_runs(rng, tokens, difficulty, seeds=sides[1], seed_sd=seed_sd)
        runs = [run[""] for run in bootstrap([*a, *b], {"": RATE}, samples=60)]
        actual = contrast(runs[: sides[0]], runs[sides[0] :])
        covered += actual.low <= 0.3 <= actual.high
    assert 0.92 <= covered / 500 <= 0.98


def test_autocorrelated_blocks_barely_raise_the_false_positive_rate():
    """Running text: the loss of a token depends on earlier tokens. With a correlation length of about 10 tokens, blocks of
    100 tokens keep the nominal false-positive rate, blocks of 10 do not."""
    rng, called = np.random.default_rng(5), {10: 0, 100: 0}
    for _ in range(300):
        tokens = np.convolve(rng.normal(0, 1, 5000 + 200), 0.9 ** np.arange(100), "valid")[:5000]
        for size in called:
            apart = tokens.reshape(-1, size).sum(1)
            called[size] += randomization_test(mean_items(apart), mean_items(np.zeros(len(apart))), RATE, samples=99) < 0.05
    assert called[100] / 300 < 0.08 and called[10] / 300 > 0.15


# ---- several rows


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02, math.nan])[0] == 0.02
    assert math.isnan(holm([0.02, math.nan])[1])
    assert holm([]) == []
