"""The rows of a comparison, best first, with confidence intervals, significance tests and costs."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.comparison.context_policy import check_one_context
from weft.comparison.results import SPLITS, RunResults
from weft.comparison.scores import has_several_tokenizers, metrics, ranking_metric
from weft.comparison.significance import (
    LEVEL,
    SAMPLES,
    BootstrapSamples,
    Estimate,
    bootstrap,
    clip_to_range,
    contrast,
    estimate,
    holm,
    randomization_test,
    smallest_p,
    smallest_p_corrected,
    welch_test,
)
from weft.errors import UsageError
from weft.metrics.items import Function, ItemStatistics
from weft.metrics.metric import Metric
from weft.tasks.registry import find_task
from weft.text.table_layout import count_of

Groups = Mapping[str, Sequence[RunResults]]
SAMPLES_PER_ROW = 50  # minimum number of permutations per tested row: Holm multiplies p by the number of rows


class Row(NamedTuple):
    """One model or configuration; scores and costs are means over its seeds."""

    name: str
    runs: list[str]
    seeds: list[int]
    metric: Metric  # the ranking metric
    score: Estimate
    scores: dict[str, Estimate]
    p: float | None  # of the difference from the best row; None for the best row itself
    best: bool
    tied_with_best: bool  # the best row, or not significantly worse on enough test items
    difference: Estimate | None  # score minus the best row's score; None for the best row itself
    smallest_p: float | None  # the smallest p that the test can give, however large the difference is
    has_enough_items: bool  # False: the test data is too small for any p below 0.05
    num_parameters: int
    seconds: float | None  # of training
    tokens_per_second: float | None  # in training
    peak_memory: int | None  # bytes, in training
    inference_rate: float
    inference_unit: str
    model_bytes: int
    num_active_parameters: int | None = None  # that one token uses, in a mixture of experts; None: all
    train_hosts: tuple[str, ...] = ()
    train_hardware: tuple[str, ...] = ()  # of all seeds
    inference_hardware: tuple[str, ...] = ()


# ---- rows


def check_same(groups: Groups) -> None:
    """Raise UsageError unless all rows were evaluated on the same items of one task."""
    runs = [run for group in groups.values() for run in group]
    first = runs[0]
    check_one_context(runs)
    compare = find_task(first.task).compare
    for other in runs[1:]:
        if other.task != first.task:
            raise UsageError("compare", f"{first.run} ({first.task}) and {other.run} ({other.task}) have different tasks")
        same = np.array_equal(first.items.keys, other.items.keys)
        texts = first.references == other.references and (not compare.has_outputs or first.inputs == other.inputs)
        if not same or not texts:
            raise UsageError("compare", f"{first.run} and {other.run} were evaluated on different items", compare.same_items)
        if (ours := compare.reference_format(first)) != (theirs := compare.reference_format(other)):
            raise UsageError(
                "compare",
                f"{first.run} and {other.run} were scored with different references or tokenizers ({ours} and {theirs})",
                "use the same data.target_column for both",
            )


def _seed_counts(groups: Groups) -> str:
    counts = sorted({len(group) for group in groups.values()})
    if counts == [1]:
        return "One run per model"
    return f"Mean over {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds"


def split_of(groups: Groups) -> str:
    """The split that the rows were evaluated on: "test" or "valid"."""
    return next(iter(groups.values()))[0].split


def describe_test(groups: Groups) -> str:
    """The footnote of the table: seeds, interval and test in one line; with a warning about unknown tokens."""
    counts = sorted(map(len, groups.values()))
    several, items = counts[-1] > 1, f"{SPLITS[split_of(groups)]} items"
    text = f"{_seed_counts(groups)}. CI over {f'seeds and {items}' if several else f'{items} (bootstrap)'}."
    if len(groups) < 2:
        return f"{text}{_describe_unknown(groups)}"
    single = "paired approximate randomization test"
    mixed = f"; {single} where both models have one run" if several and counts[:2] == [1, 1] else ""
    test = f"Welch's t-test{mixed}" if several else single
    holm_corrected = ", Holm-corrected" if len(groups) > 2 else ""
    return f"{text} p: difference from the best model ({test}{holm_corrected}).{_describe_unknown(groups)}"


def describe_test_details(groups: Groups) -> str:
    """A longer version of `describe_test`, for the report."""
    counts = sorted(map(len, groups.values()))
    several, items = counts[-1] > 1, f"{SPLITS[split_of(groups)]} items"
    text = (
        f"Scores are means over seeds. The interval is Student's t over seeds and {items}."
        if several
        else f"Scores are those of one run. The interval is a bootstrap over {items} (1,000 resamples)."
    )
    if len(groups) < 2:
        return text
    single = f"paired over {items} (approximate randomization), so it is about these runs and says nothing about other seeds"
    several_seeds = (
        f"by Welch's t-test over seeds, which are not paired, and {items}, which are (variance over items from a bootstrap)"
    )
    mixed = f"; where both models have one run, it is {single}" if several and counts[:2] == [1, 1] else ""
    corrected = " Holm's correction accounts for the number of models." if len(groups) > 2 else ""
    p = "p is the probability of a difference this large if both models were equally good"
    return f"{text} {p}, {several_seeds + mixed if several else single}.{corrected}"


def _describe_unknown(groups: Groups) -> str:
    """The fraction of unknown tokens of each row if tokenizers differ: an unknown token replaces many characters at a small
    loss."""
    runs = [run.scores for group in groups.values() for run in group]
    fractions = {name: max(run.unknown for run in group) for name, group in groups.items()}
    if not has_several_tokenizers(runs) or not any(fractions.values()):
        return ""
    rates = ", ".join(f"{name} {100 * fraction:.2g}%" for name, fraction in fractions.items() if fraction)
    return f" Unknown tokens ({rates}) are cheap to predict, so these scores look better than they are."


def count_items(groups: Groups) -> tuple[int, str]:
    """The number of items that were evaluated, and the name of one item."""
    run = next(iter(groups.values()))[0]
    return len(run.items.keys), run.item


def insufficient_data(rows: Sequence[Row], groups: Groups) -> str:
    """Which rows the test cannot tell from the best one, and why; '' if it can tell all of them."""
    unclear = [row for row in rows if not row.has_enough_items]
    if not unclear:
        return ""
    minimum, names = min(row.smallest_p or 0.0 for row in unclear), ", ".join(row.name for row in unclear)
    reason = f"with {count_of(*count_items(groups))}, p is at least {minimum:.2g} however large the difference is"
    return f"Too little {SPLITS[split_of(groups)]} data (?) to tell {rows[0].name} from {names}: {reason}."


def _sort_key(value: float, metric: Metric) -> float:
    """The sort key of a score: smaller is better, NaN is last."""
    return math.inf if math.isnan(value) else -value if metric.higher_is_better else value


class _Test(NamedTuple):
    """The result of the test of a row against the best one."""

    p: float
    smallest: float
    difference: Estimate


def _corrected(tests: Mapping[str, _Test]) -> dict[str, _Test]:
    """The tests with Holm's correction; rows without a p-value are not counted."""
    tested = [name for name, test in tests.items() if not math.isnan(test.p)]
    values = holm([tests[name].p for name in tested])
    minima = smallest_p_corrected([tests[name].smallest for name in tested])
    changed = {name: tests[name]._replace(p=p, smallest=low) for name, p, low in zip(tested, values, minima, strict=True)}
    return {**tests, **changed}


def _compare_rows(
    a: tuple[Sequence[ItemStatistics], Sequence[BootstrapSamples]],
    b: tuple[Sequence[ItemStatistics], Sequence[BootstrapSamples]],
    score: Function,
    samples: int,
) -> _Test:
    """Test row a against row b; each is a pair of item statistics and bootstrap samples of its seeds."""
    minimum = smallest_p((len(a[0]), len(b[0])), a[1][0].items, samples=samples)
    single = len(a[0]) == len(b[0]) == 1
    p = randomization_test(a[0][0], b[0][0], score, samples=samples) if single else welch_test(a[1], b[1])
    return _Test(p, minimum, contrast(a[1], b[1]))


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def rows(groups: Groups, metric_name: str | None = None) -> list[Row]:
    """All rows, the best first, by the metric named `metric_name` or the task's default."""
    if not groups:
        raise UsageError("compare", "no runs to compare", "name at least one")
    check_same(groups)
    runs = [run for group in groups.values() for run in group]
    metric = ranking_metric(runs[0].task, [run.scores for run in runs], metric_name)
    task_metrics = metrics(runs[0].task, runs[0].scores)
    common = {name: task_metrics[name] for name in task_metrics if _in_all_runs(name, runs)}
    functions = {name: shared.compute for name, shared in common.items()}
    samples_of_runs = iter(bootstrap([run.items for run in runs], functions))
    samples = {row: [next(samples_of_runs) for _ in group] for row, group in groups.items()}
    scores = {
        row: {name: _estimate_score([run[name] for run in row_samples], common[name]) for name in common}
        for row, row_samples in samples.items()
    }
    names = list(groups)
    best = min(names, key=lambda row: _sort_key(scores[row][metric.name].value, metric))
    sides = {row: ([run.items for run in groups[row]], [run[metric.name] for run in samples[row]]) for row in names}
    tested = [row for row in names if row != best]
    num_samples = max(SAMPLES, SAMPLES_PER_ROW * len(tested))
    tests = _corrected({row: _compare_rows(sides[row], sides[best], metric.compute, num_samples) for row in tested})
    table = [_row(row, groups[row], metric, scores[row], tests.get(row)) for row in names]
    return sorted(table, key=lambda row: (not row.best, _sort_key(row.score.value, metric)))


def _in_all_runs(name: str, runs: Sequence[RunResults]) -> bool:
    return all(name in {score.name for score in run.scores} for run in runs)


def _estimate_score(runs: Sequence[BootstrapSamples], metric: Metric) -> Estimate:
    score = estimate(runs)
    return clip_to_range(score, metric) if metric.interval else Estimate(score.value, None, None)


def _row(name: str, runs: Sequence[RunResults], metric: Metric, scores: dict[str, Estimate], test: _Test | None) -> Row:
    p = None if test is None or math.isnan(test.p) else test.p
    infinite = test is not None and not math.isfinite(test.difference.value)  # cannot be tested, but the difference is certain
    has_enough_items = test is None or infinite or test.smallest < LEVEL
    difference = None if test is None else test.difference
    if difference is not None and not metric.interval:
        difference = Estimate(difference.value, None, None)
    costs = [run.cost for run in runs]
    memory = [cost.peak_memory for cost in costs if cost.peak_memory is not None]
    return Row(
        name=name,
        runs=[str(run.run) for run in runs],
        seeds=[run.seed for run in runs],
        metric=metric,
        score=scores[metric.name],
        scores=scores,
        p=p,
        best=test is None,
        tied_with_best=test is None or (has_enough_items and p is not None and p >= LEVEL),
        difference=difference,
        smallest_p=None if test is None or infinite else test.smallest,
        has_enough_items=has_enough_items,
        num_parameters=costs[0].num_parameters,
        seconds=_mean([cost.seconds for cost in costs]),
        tokens_per_second=_mean([cost.tokens_per_second for cost in costs]),
        peak_memory=max(memory, default=None),
        inference_rate=float(np.mean([cost.inference_rate for cost in costs])),
        inference_unit=costs[0].inference_unit,
        model_bytes=costs[0].model_bytes,
        num_active_parameters=costs[0].num_active_parameters,
        train_hosts=_unique(host for cost in costs for host in cost.train_hosts),
        train_hardware=_unique(name for cost in costs for name in cost.train_hardware),
        inference_hardware=_unique(cost.inference_hardware for cost in costs if cost.inference_hardware),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def mixed_hardware(rows: Sequence[Row]) -> list[str]:
    """The hardware that runs were trained on, if it differs between them: then training times cannot be compared."""
    names = _unique(name for row in rows for name in row.train_hardware)
    return list(names) if len(names) > 1 else []


# ---- JSON


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def estimate_json(score: Estimate) -> dict[str, Any]:
    """JSON has no infinity: an infinite value is null, with "infinite": true."""
    infinite = {"infinite": True} if math.isinf(score.value) else {}
    return {"value": finite(score.value), "low": finite(score.low), "high": finite(score.high), **infinite}


def row_json(row: Row) -> dict[str, Any]:
    """A row of comparison.json."""
    fields = ("name", "runs", "seeds", "p", "best", "tied_with_best", "has_enough_items", "smallest_p")
    costs = ("num_parameters", "seconds", "tokens_per_second", "peak_memory", "model_bytes", "inference_rate", "inference_unit")
    machines = ("train_hosts", "train_hardware", "inference_hardware")
    return {
        **{name: getattr(row, name) for name in (*fields, *costs)},
        **{name: list(getattr(row, name)) for name in machines},
        **({} if row.num_active_parameters is None else {"num_active_parameters": row.num_active_parameters}),
        "score": estimate_json(row.score),
        "difference": None if row.difference is None else estimate_json(row.difference),
        "scores": {name: estimate_json(score) for name, score in row.scores.items()},
    }


def json(rows: Sequence[Row]) -> str:
    """The rows of comparison.json, as text."""
    return json_format.dumps([row_json(row) for row in rows], ensure_ascii=False, allow_nan=False, indent=2) + "\n"
