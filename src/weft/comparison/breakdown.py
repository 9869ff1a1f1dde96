"""Where scores come from: by the length of what was read, by how frequent it was in training, by label.

Shapes: N items, F classes of frequency, K labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from weft.comparison.results import RunResults
from weft.comparison.significance import BootstrapSamples, Estimate, clipped, estimate, resampled
from weft.metrics.classification import f1, ratio
from weft.metrics.frequency import FREQUENCIES
from weft.metrics.items import Array, Function, ItemStatistics, Sums, total
from weft.metrics.metric import Metric, metrics_of
from weft.tasks.compare_spec import LabelCounts, Rate
from weft.tasks.registry import find_task
from weft.tasks.spec import AnyTask

Groups = Mapping[str, Sequence[RunResults]]
PARTS = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 0.95)  # of the items, by length: the longest few stand for themselves
MIN_GROUP = 5  # items of a bin
LABELS = 40  # that are shown, the most frequent ones


class Cell(NamedTuple):
    """One bin: what it is called, how much is in it, and, of each row, the score of what is."""

    name: str
    size: int
    found: dict[str, Estimate]


def as_json(by: str, metric: Metric, cells: Sequence[Cell], rows: Sequence[str], *, unit: str = "items") -> dict[str, Any]:
    """A breakdown as comparison.json has it; JSON has no infinity: the bins where a row has it are told beside."""
    found = {row: [clipped(cell.found[row], metric) for cell in cells] for row in rows}
    parts = {
        part: {row: [_number(getattr(one, field)) for one in found[row]] for row in rows}
        for part, field in (("values", "value"), ("low", "low"), ("high", "high"))
    }
    places = {row: [at for at, one in enumerate(found[row]) if math.isinf(one.value)] for row in rows}
    return {
        "by": by,
        "score": {"name": metric.name, "better": metric.better},
        "unit": unit,  # of the counts
        "bins": [cell.name for cell in cells],
        "counts": [cell.size for cell in cells],
        **parts,
        "infinite": {row: bins for row, bins in places.items() if bins},
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# ---- by items


def round_borders(lengths: Array) -> list[int]:
    """Where bins of items end, at most, in numbers that are easily read; none where lengths hardly differ."""
    shortest, max_length = np.quantile(lengths, (0.1, 0.9))
    if max_length < 1.5 * max(1, shortest):
        return []
    found: list[int] = []
    for border in np.quantile(lengths, PARTS):
        step = 1 if border < 20 else 5 if border < 100 else 10 ** (math.floor(math.log10(border)) - 1)
        rounded = max(step, round(border / step) * step)
        before = found[-1] if found else -math.inf
        enough = ((lengths > before) & (lengths <= rounded)).sum() >= MIN_GROUP
        if rounded > before and enough and (lengths > rounded).sum() >= MIN_GROUP:
            found.append(int(rounded))
    return found


def _named(borders: Sequence[int]) -> list[str]:
    """'1-5', '6-10', 'over 10' of borders 5 and 10."""
    starts = [1, *(border + 1 for border in borders[:-1])]
    spans = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high in zip(starts, borders, strict=True)]
    return [*spans, f"over {borders[-1]:,}"]


def _subset(items: ItemStatistics, members: Array) -> ItemStatistics:
    return ItemStatistics(items.keys[members], {name: values[members] for name, values in items.statistics.items()})


def by_bins(groups: Groups, bins: Array, names: Sequence[str], function: Function) -> list[Cell]:
    """Cells of items whose bin (N,) has a name, those without items left out."""
    cells = []
    for at, name in enumerate(names):
        members = np.flatnonzero(bins == at)
        if not len(members):
            continue
        found = {
            row: estimate([one[""] for one in resampled([_subset(run.items, members) for run in runs], {"": function})])
            for row, runs in groups.items()
        }
        cells.append(Cell(name, len(members), found))
    return cells


def _by_length(groups: Groups, function: Function) -> list[Cell]:
    lengths = next(iter(groups.values()))[0].lengths  # of the first row's tokens, where rows have tokenizers of their own
    borders = round_borders(lengths)
    return by_bins(groups, np.searchsorted(borders, lengths), _named(borders), function) if borders else []


# ---- by frequency


def _frequency_names() -> list[str]:
    edges = [0, *FREQUENCIES]
    spans = pairwise(edges)
    return [f"{low:,}" if high - low == 1 else f"{low:,}-{high - 1:,}" for low, high in spans] + [f"{edges[-1]:,} and more"]


def _by_rarest(groups: Groups, function: Function) -> list[Cell]:
    rarest = next(iter(groups.values()))[0].rarest
    if rarest is None:
        return []
    return by_bins(groups, np.digitize(rarest, FREQUENCIES), _frequency_names(), function)


def _columns(runs: Sequence[ItemStatistics], function: Function, width: int) -> list[list[BootstrapSamples]]:
    """For each of `width` columns the runs' scores of it: `function` is of sums, whose last axis is those columns."""
    functions = {str(at): _column(function, at) for at in range(width)}
    found = resampled(runs, functions)
    return [[run[str(at)] for run in found] for at in range(width)]


def _column(function: Function, at: int) -> Function:
    def score(totals: Sums) -> Array:
        return function({name: values[..., at] for name, values in _all(totals).items()})

    return score


def _all(totals: Sums) -> dict[str, Array]:
    """Every sum by name, each looked at: some mappings remember which were."""
    return {name: totals[name] for name in totals}


def _rate(above: str, scale: float) -> Function:
    def score(totals: Sums) -> Array:
        return scale * ratio(totals[above], totals["tokens"], empty=math.nan)

    return score


def _rate_metric(task: AnyTask, rate: Rate) -> Metric:
    """The task's metric as what tells of tokens, or words, of one frequency."""
    return metrics_of(task.suites, [rate.metric])[rate.metric]._replace(of=_rate(rate.statistic, rate.scale))


def _by_classes(groups: Groups, function: Function) -> list[Cell]:
    """Of tokens, or words, by the class of their frequency."""
    first = next(iter(groups.values()))[0]
    counts = first.frequencies["tokens"].sum(0)
    found = {
        row: [
            estimate(runs_of)
            for runs_of in _columns(
                [ItemStatistics(run.items.keys, dict(run.frequencies)) for run in runs], function, len(counts)
            )
        ]
        for row, runs in groups.items()
    }
    return [
        Cell(name, int(counts[at]), {row: values[at] for row, values in found.items()})
        for at, name in enumerate(_frequency_names())
        if counts[at]
    ]


# ---- by label


def _f1(totals: Sums) -> Array:
    """NaN for a label that was neither said nor meant."""
    values = f1(totals["both"], totals["said"], totals["meant"])
    return np.where(totals["said"] + totals["meant"] > 0, values, math.nan)


LABEL_F1 = Metric("f1", _f1, "higher", percent=True)


def _only(items: ItemStatistics, labels: Sequence[int]) -> ItemStatistics:
    """The counts of these labels alone."""
    return ItemStatistics(items.keys, {name: items.statistics[name][:, labels] for name in ("said", "meant", "both")})


def _precision_recall(
    counted: Mapping[str, Sequence[ItemStatistics]], order: Sequence[int]
) -> dict[str, dict[str, list[float]]]:
    """Of each row the precision and the recall of these labels, in percent: the means over its seeds."""
    found: dict[str, dict[str, list[float]]] = {"precision": {}, "recall": {}}
    for row, runs in counted.items():
        totals = [total(_only(run, order).statistics) for run in runs]
        for name, whole in (("precision", "said"), ("recall", "meant")):
            fractions = np.concatenate([100 * ratio(total["both"], total[whole]) for total in totals])
            found[name][row] = fractions.mean(0).tolist()
    return found


def _by_label(groups: Groups, counts: Callable[[RunResults], LabelCounts]) -> dict[str, Any] | None:
    """F1 of each label, type of span or tag, the most frequent first, with precision and recall; None where there is none."""
    found_by = {row: [counts(run) for run in runs] for row, runs in groups.items()}
    by, unit, names, _ = next(iter(found_by.values()))[0]
    counted = {row: [one.items for one in several] for row, several in found_by.items()}
    meant = next(iter(counted.values()))[0].statistics["meant"].sum(0)
    order = [at for at in np.argsort(-meant, kind="stable").tolist() if meant[at]][:LABELS]
    # only what is shown: of a thousand labels each resample would have a thousand
    found = {row: _columns([_only(run, order) for run in runs], LABEL_F1.of, len(order)) for row, runs in counted.items()}
    cells = [
        Cell(names[at], int(meant[at]), {row: estimate(columns[place]) for row, columns in found.items()})
        for place, at in enumerate(order)
    ]
    if not cells:
        return None
    return as_json(by, LABEL_F1, cells, list(groups), unit=unit) | _precision_recall(counted, order)


# ---- all of them


def same_tokens(groups: Groups) -> bool:
    """Whether the runs of all rows cut the text into as many tokens everywhere, and learned the same ones as often."""
    runs = [run for group in groups.values() for run in group]
    first = runs[0].frequencies.get("tokens")
    return first is not None and all(np.array_equal(run.frequencies.get("tokens", ()), first) for run in runs)


def same_labels(groups: Groups) -> bool:
    runs = [run for group in groups.values() for run in group]
    return bool(runs[0].labels) and all(run.labels == runs[0].labels for run in runs)


def breakdowns(groups: Groups, metric: Metric) -> Iterator[dict[str, Any]]:
    """Every breakdown that the task has, by the metric that decides where it can be."""
    first, rows = next(iter(groups.values()))[0], list(groups)
    task = find_task(first.task)
    compare, what = task.compare, task.compare.length_unit
    if len(cells := _by_length(groups, metric.of)) > 1:
        yield as_json(f"length of the input in {what}", metric, cells, rows)
    if len(cells := _by_rarest(groups, metric.of)) > 1:
        yield as_json("frequency of the rarest token of the input in training", metric, cells, rows)
    if compare.rate is not None and same_tokens(groups):
        rate = _rate_metric(task, compare.rate)
        by = f"frequency of the {what.removesuffix('s')} in training"
        if len(cells := _by_classes(groups, rate.of)) > 1:
            yield as_json(by, rate, cells, rows, unit=what)
    if compare.by_label is not None and same_labels(groups) and (found := _by_label(groups, compare.by_label)) is not None:
        yield found
