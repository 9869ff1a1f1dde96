"""The table of a comparison: rows by name, best first, for people, programs and papers."""

from __future__ import annotations

import json as notation
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.comparison.context_policy import check_one_context
from weft.comparison.results import RunResults
from weft.comparison.scores import has_several_tokenizers, metrics, ranking_metric
from weft.comparison.significance import (
    LEVEL,
    SAMPLES,
    BootstrapSamples,
    Estimate,
    clipped,
    contrast,
    difference,
    estimate,
    holm,
    paired,
    resampled,
    smallest_p,
    smallest_p_overall,
)
from weft.errors import UsageError
from weft.metrics.items import Function, ItemStatistics
from weft.metrics.metric import Metric
from weft.tasks.registry import find_task
from weft.text.table_layout import count_of

Groups = Mapping[str, Sequence[RunResults]]
DIFFERENCE = "difference from best"
SAMPLES_PER_ROW = 50  # at least so many exchanges for each row that is tested: Holm multiplies p by their number


class Row(NamedTuple):
    """One model, or one setting of it, over its seeds; costs are means over them."""

    name: str
    runs: list[str]
    seeds: list[int]
    deciding: Metric  # what rows are ordered by
    score: Estimate
    scores: dict[str, Estimate]
    p: float | None  # that it is as good as the best row; None for that one itself
    best: bool
    tied_with_best: bool  # the best row, or not significantly worse where the test could have told
    difference: Estimate | None  # how far its score is above the best row's; None for that one itself
    smallest_p: float | None  # that the test could have given, however far the rows are apart
    has_enough_items: bool  # test data to tell: else p says nothing
    num_parameters: int
    seconds: float | None
    tokens_per_second: float | None
    peak_memory: int | None
    decoding: float
    unit: str
    bytes: int


# ---- making it


def check_same(groups: Groups) -> None:
    """Refuse rows that were not measured on the same items of one task."""
    runs = [run for group in groups.values() for run in group]
    first = runs[0]
    check_one_context(runs)
    compare = find_task(first.task).compare
    for other in runs[1:]:
        if other.task != first.task:
            raise UsageError(
                "compare", f"{first.run} is of task {first.task!r}, {other.run} of {other.task!r}", "compare one task"
            )
        same = np.array_equal(first.items.keys, other.items.keys)
        texts = first.references == other.references and (not compare.outputs or first.inputs == other.inputs)
        if not same or not texts:
            raise UsageError(
                "compare", f"{first.run} and {other.run} were measured on different items", "give both the same data"
            )
        if (ours := compare.references(first)) != (theirs := compare.references(other)):
            raise UsageError(
                "compare",
                f"{first.run} and {other.run} were scored with other references or tokenizers ({ours} and {theirs})",
                "give both the same data.target_column",
            )


def describe_test(groups: Groups) -> str:
    """What the interval is, and what p is; and what makes scores look better than they are."""
    counts = sorted(map(len, groups.values()))
    several = counts[-1] > 1
    seeds = "means over seeds, with a 95 % interval over seeds and test items (Student's t)"
    one = "those of one run, with a 95 % interval over test items (bootstrap, 1,000 resamples)"
    words = f"Scores are {seeds if several else one}"
    if len(groups) < 2:
        return f"{words}.{_unknown(groups)}"
    both = "over seeds, which are not paired, and test items, which are (Welch's t, the variance over items from a bootstrap)"
    pairs = "paired over test items (approximate randomisation), so it is about these runs and not about other seeds"
    mixed = f"; where both have one run, {pairs}" if several and counts[:2] == [1, 1] else ""
    corrected = ", with Holm's correction for several rows" if len(groups) > 2 else ""
    p = "p is the probability of so large a difference from the best row if both were equally good"
    return f"{words}; {p}, {both + mixed if several else pairs}{corrected}.{_unknown(groups)}"


def _unknown(groups: Groups) -> str:
    """Which rows have tokens that they don't know, where rows have tokenizers of their own: such a token stands for many
    characters, and costs little."""
    runs = [run.scores for group in groups.values() for run in group]
    fractions = {name: max(run.unknown for run in group) for name, group in groups.items()}
    if not has_several_tokenizers(runs) or not any(fractions.values()):
        return ""
    named = ", ".join(f"{name} {100 * fraction:.2g} %" for name, fraction in fractions.items() if fraction)
    return f" Unknown tokens ({named}) cost little whatever they stand for, so these scores look better than they are."


def significance_test(groups: Groups) -> tuple[int, str]:
    """How many items the test data has, and what one is."""
    run = next(iter(groups.values()))[0]
    return len(run.items.keys), run.item


def insufficient_data(found: Sequence[Row], groups: Groups) -> str:
    """If the test could tell nothing of a row, which one and why; else ''."""
    unclear = [row for row in found if not row.has_enough_items]
    if not unclear:
        return ""
    minimum, names = min(row.smallest_p or 0.0 for row in unclear), ", ".join(row.name for row in unclear)
    reason = f"with {count_of(*significance_test(groups))} no difference, however large, has a p below {minimum:.2g}"
    return f"Too little test data to tell (?) {found[0].name} from {names}: {reason}."


def _order(value: float, metric: Metric) -> float:
    """What rows are sorted by: the smaller the better, and NaN last."""
    return math.inf if math.isnan(value) else -value if metric.upwards else value


class _Test(NamedTuple):
    """What the test of a row against the best one found."""

    p: float
    smallest: float
    difference: Estimate


def _corrected(tests: Mapping[str, _Test]) -> dict[str, _Test]:
    """The same with Holm's correction; a row that can't be tested counts for none."""
    known = [name for name, test in tests.items() if not math.isnan(test.p)]
    values = holm([tests[name].p for name in known])
    minimum = smallest_p_overall([tests[name].smallest for name in known])
    changed = {name: tests[name]._replace(p=p, smallest=one) for name, p, one in zip(known, values, minimum, strict=True)}
    return {**tests, **changed}


def _apart(
    a: tuple[Sequence[ItemStatistics], Sequence[BootstrapSamples]],
    b: tuple[Sequence[ItemStatistics], Sequence[BootstrapSamples]],
    score: Function,
    samples: int,
) -> _Test:
    """The test of two rows."""
    minimum = smallest_p((len(a[0]), len(b[0])), a[1][0].items, samples=samples)
    single = len(a[0]) == len(b[0]) == 1
    p = paired(a[0][0], b[0][0], score, samples=samples) if single else difference(a[1], b[1])
    return _Test(p, minimum, contrast(a[1], b[1]))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def rows(groups: Groups, score: str | None = None) -> list[Row]:
    """Every row, the best first; `score` decides instead of the task's own."""
    if not groups:
        raise UsageError("compare", "there is no run to compare", "name at least one")
    check_same(groups)
    runs = [run for group in groups.values() for run in group]
    decides = ranking_metric(runs[0].task, [run.scores for run in runs], score)
    common = {name: metric for name, metric in metrics(runs[0].task, runs[0].scores).items() if _everywhere(name, runs)}
    again = iter(resampled([run.items for run in runs], {name: metric.of for name, metric in common.items()}))
    drawn = {row: [next(again) for _ in group] for row, group in groups.items()}
    found = {
        row: {name: _estimated([one[name] for one in several], metric) for name, metric in common.items()}
        for row, several in drawn.items()
    }
    names = list(groups)
    best = min(names, key=lambda row: _order(found[row][decides.name].value, decides))
    sides = {row: ([run.items for run in groups[row]], [one[decides.name] for one in drawn[row]]) for row in names}
    others = [row for row in names if row != best]
    samples = max(SAMPLES, SAMPLES_PER_ROW * len(others))
    tests = _corrected({row: _apart(sides[row], sides[best], decides.of, samples) for row in others})
    made = [_row(row, groups[row], decides, found[row], tests.get(row)) for row in names]
    return sorted(made, key=lambda row: (not row.best, _order(row.score.value, decides)))


def _everywhere(name: str, runs: Sequence[RunResults]) -> bool:
    return all(name in {score.name for score in run.scores} for run in runs)


def _estimated(runs: Sequence[BootstrapSamples], metric: Metric) -> Estimate:
    found = estimate(runs)
    return clipped(found, metric) if metric.interval else Estimate(found.value, None, None)


def _row(name: str, runs: Sequence[RunResults], decides: Metric, scores: dict[str, Estimate], test: _Test | None) -> Row:
    p = None if test is None or math.isnan(test.p) else test.p
    infinite = test is not None and not math.isfinite(test.difference.value)  # no test, but no doubt either
    enough = test is None or infinite or test.smallest < LEVEL
    apart = None if test is None else test.difference
    if apart is not None and not decides.interval:
        apart = Estimate(apart.value, None, None)
    costs = [run.cost for run in runs]
    memory = [cost.peak_memory for cost in costs if cost.peak_memory is not None]
    return Row(
        name=name,
        runs=[str(run.run) for run in runs],
        seeds=[run.seed for run in runs],
        deciding=decides,
        score=scores[decides.name],
        scores=scores,
        p=p,
        best=test is None,
        tied_with_best=test is None or (enough and p is not None and p >= LEVEL),
        difference=apart,
        smallest_p=None if test is None or infinite else test.smallest,
        has_enough_items=enough,
        num_parameters=costs[0].num_parameters,
        seconds=_mean([cost.seconds for cost in costs]),
        tokens_per_second=_mean([cost.tokens_per_second for cost in costs]),
        peak_memory=max(memory, default=None),
        decoding=float(np.mean([cost.decoding for cost in costs])),
        unit=costs[0].unit,
        bytes=costs[0].bytes,
    )


# ---- writing it


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def estimate_json(found: Estimate) -> dict[str, Any]:
    """JSON has no infinity: an infinite value is null and says so."""
    infinite = {"infinite": True} if math.isinf(found.value) else {}
    return {"value": finite(found.value), "low": finite(found.low), "high": finite(found.high), **infinite}


def row_json(row: Row) -> dict[str, Any]:
    """A row as comparison.json has it."""
    tested = ("name", "runs", "seeds", "p", "best", "alike", "enough", "smallest_p")
    costs = ("parameters", "seconds", "tokens_per_second", "peak_memory", "bytes")
    return {
        **{name: getattr(row, name) for name in (*tested, *costs)},
        "score": estimate_json(row.score),
        "difference": None if row.difference is None else estimate_json(row.difference),
        "scores": {name: estimate_json(found) for name, found in row.scores.items()},
        "decoding": {"value": row.decoding, "unit": row.unit},
    }


def json(found: Sequence[Row]) -> str:
    """Rows as comparison.json has them."""
    return notation.dumps([row_json(row) for row in found], ensure_ascii=False, allow_nan=False, indent=2) + "\n"
