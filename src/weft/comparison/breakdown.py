"""Scores broken down by input length, by frequency in the training data, and by label.

Shapes: N items, F classes of frequency, K labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from weft.comparison.results import RunResults
from weft.comparison.significance import BootstrapSamples, Estimate, bootstrap, clip_to_range, estimate
from weft.metrics.classification import f1, ratio
from weft.metrics.frequency import FREQUENCIES
from weft.metrics.items import Array, Function, ItemStatistics, Sums, total
from weft.metrics.metric import Metric, metrics_of
from weft.tasks.compare_spec import FrequencyMetric, LabelCounts
from weft.tasks.registry import find_task
from weft.tasks.spec import AnyTask

Groups = Mapping[str, Sequence[RunResults]]
QUANTILES = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 0.95)  # of the lengths; the longest 5% are a separate bin
MIN_BIN_ITEMS = 5
MAX_LABELS = 40  # the most frequent labels


class Cell(NamedTuple):
    """One bin: its name, its size, and the score of each row on it."""

    name: str
    size: int
    scores: dict[str, Estimate]


def as_json(by: str, metric: Metric, cells: Sequence[Cell], rows: Sequence[str], *, unit: str = "items") -> dict[str, Any]:
    """A breakdown in comparison.json. JSON has no infinity: "infinite" lists the bins where a row has an infinite score."""
    scores = {row: [clip_to_range(cell.scores[row], metric) for cell in cells] for row in rows}
    parts = {
        part: {row: [_number(getattr(score, field)) for score in scores[row]] for row in rows}
        for part, field in (("values", "value"), ("low", "low"), ("high", "high"))
    }
    infinite = {row: [i for i, score in enumerate(scores[row]) if math.isinf(score.value)] for row in rows}
    return {
        "by": by,
        "metric": {"name": metric.name, "better": metric.better},
        "unit": unit,  # of the counts
        "bins": [cell.name for cell in cells],
        "counts": [cell.size for cell in cells],
        **parts,
        "infinite": {row: bins for row, bins in infinite.items() if bins},
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# ---- by items


def round_borders(lengths: Array) -> list[int]:
    """The upper bounds of bins by length, as round numbers; empty if the lengths hardly differ."""
    short, long = np.quantile(lengths, (0.1, 0.9))
    if long < 1.5 * max(1, short):
        return []
    borders: list[int] = []
    for border in np.quantile(lengths, QUANTILES):
        step = 1 if border < 20 else 5 if border < 100 else 10 ** (math.floor(math.log10(border)) - 1)
        rounded = max(step, round(border / step) * step)
        previous = borders[-1] if borders else -math.inf
        has_enough_items = ((lengths > previous) & (lengths <= rounded)).sum() >= MIN_BIN_ITEMS
        if rounded > previous and has_enough_items and (lengths > rounded).sum() >= MIN_BIN_ITEMS:
            borders.append(int(rounded))
    return borders


def _bin_names(borders: Sequence[int]) -> list[str]:
    """'1-5', '6-10' and 'over 10' for borders 5 and 10."""
    starts = [1, *(border + 1 for border in borders[:-1])]
    spans = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high in zip(starts, borders, strict=True)]
    return [*spans, f"over {borders[-1]:,}"]


def subset(items: ItemStatistics, members: Array) -> ItemStatistics:
    """The items at these indices."""
    return ItemStatistics(items.keys[members], {name: values[members] for name, values in items.statistics.items()})


def by_bins(groups: Groups, bins: Array, names: Sequence[str], function: Function) -> list[Cell]:
    """The scores of each bin; `bins` (N,) is the bin index of each item. Empty bins are left out."""
    cells = []
    for i, name in enumerate(names):
        members = np.flatnonzero(bins == i)
        if not len(members):
            continue
        scores = {
            row: estimate([sample[""] for sample in bootstrap([subset(run.items, members) for run in runs], {"": function})])
            for row, runs in groups.items()
        }
        cells.append(Cell(name, len(members), scores))
    return cells


def _by_length(groups: Groups, function: Function) -> list[Cell]:
    lengths = next(iter(groups.values()))[0].lengths  # in tokens of the first row, if rows have different tokenizers
    borders = round_borders(lengths)
    return by_bins(groups, np.searchsorted(borders, lengths), _bin_names(borders), function) if borders else []


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
    """The scores of all runs for each index of the last axis of the statistics; `function` takes sums without that axis."""
    functions = {str(column): _column(function, column) for column in range(width)}
    samples = bootstrap(runs, functions)
    return [[run[str(column)] for run in samples] for column in range(width)]


def _column(function: Function, column: int) -> Function:
    def score(totals: Sums) -> Array:
        return function({name: values[..., column] for name, values in _read_all(totals).items()})

    return score


def _read_all(totals: Sums) -> dict[str, Array]:
    """A copy that reads every sum, since some mappings record which sums are used."""
    return {name: totals[name] for name in totals}


def _rate(numerator: str, scale: float) -> Function:
    def score(totals: Sums) -> Array:
        return scale * ratio(totals[numerator], totals["tokens"], empty=math.nan)

    return score


def _rate_metric(task: AnyTask, rate: FrequencyMetric) -> Metric:
    """The task's metric for tokens, or words, of one frequency class."""
    return metrics_of(task.eval_suites, [rate.metric])[rate.metric]._replace(compute=_rate(rate.statistic, rate.scale))


def _by_frequency(groups: Groups, function: Function) -> list[Cell]:
    """Scores of tokens, or words, by frequency class."""
    first = next(iter(groups.values()))[0]
    counts = first.frequencies["tokens"].sum(0)
    scores = {
        row: [
            estimate(samples)
            for samples in _columns(
                [ItemStatistics(run.items.keys, dict(run.frequencies)) for run in runs], function, len(counts)
            )
        ]
        for row, runs in groups.items()
    }
    return [
        Cell(name, int(counts[i]), {row: values[i] for row, values in scores.items()})
        for i, name in enumerate(_frequency_names())
        if counts[i]
    ]


# ---- by label


def _f1(totals: Sums) -> Array:
    """F1 of each label; NaN for a label that is neither predicted nor gold."""
    values = f1(totals["correct"], totals["predicted"], totals["gold"])
    return np.where(totals["predicted"] + totals["gold"] > 0, values, math.nan)


LABEL_F1 = Metric("f1", _f1, "higher", percent=True)


def _select_labels(items: ItemStatistics, labels: Sequence[int]) -> ItemStatistics:
    """The counts of these labels only."""
    return ItemStatistics(items.keys, {name: items.statistics[name][:, labels] for name in ("predicted", "gold", "correct")})


def _precision_recall(
    items_by_row: Mapping[str, Sequence[ItemStatistics]], order: Sequence[int]
) -> dict[str, dict[str, list[float]]]:
    """Precision and recall of these labels in percent, by row, averaged over seeds."""
    scores: dict[str, dict[str, list[float]]] = {"precision": {}, "recall": {}}
    for row, runs in items_by_row.items():
        totals = [total(_select_labels(run, order).statistics) for run in runs]
        for name, denominator in (("precision", "predicted"), ("recall", "gold")):
            fractions = np.concatenate([100 * ratio(total["correct"], total[denominator]) for total in totals])
            scores[name][row] = fractions.mean(0).tolist()
    return scores


def _by_label(groups: Groups, counts: Callable[[RunResults], LabelCounts]) -> dict[str, Any] | None:
    """F1, precision and recall of each label, span type or tag, the most frequent first; None if there are no labels."""
    label_counts = {row: [counts(run) for run in runs] for row, runs in groups.items()}
    by, unit, names, _ = next(iter(label_counts.values()))[0]
    items_by_row = {row: [run.items for run in runs] for row, runs in label_counts.items()}
    gold_counts = next(iter(items_by_row.values()))[0].statistics["gold"].sum(0)
    order = [label for label in np.argsort(-gold_counts, kind="stable").tolist() if gold_counts[label]][:MAX_LABELS]
    # only these labels: each resample has one column per label
    samples = {
        row: _columns([_select_labels(run, order) for run in runs], LABEL_F1.compute, len(order))
        for row, runs in items_by_row.items()
    }
    cells = [
        Cell(names[label], int(gold_counts[label]), {row: estimate(columns[column]) for row, columns in samples.items()})
        for column, label in enumerate(order)
    ]
    if not cells:
        return None
    return as_json(by, LABEL_F1, cells, list(groups), unit=unit) | _precision_recall(items_by_row, order)


# ---- all breakdowns


def same_tokens(groups: Groups) -> bool:
    """Whether the runs of all rows have the same number of tokens per item and frequency class."""
    runs = [run for group in groups.values() for run in group]
    first = runs[0].frequencies.get("tokens")
    return first is not None and all(np.array_equal(run.frequencies.get("tokens", ()), first) for run in runs)


def same_labels(groups: Groups) -> bool:
    runs = [run for group in groups.values() for run in group]
    return bool(runs[0].labels) and all(run.labels == runs[0].labels for run in runs)


def breakdowns(groups: Groups, metric: Metric) -> Iterator[dict[str, Any]]:
    """All breakdowns of the task, with the ranking metric where possible."""
    first, rows = next(iter(groups.values()))[0], list(groups)
    task = find_task(first.task)
    compare, unit = task.compare, task.compare.length_unit
    if len(cells := _by_length(groups, metric.compute)) > 1:
        yield as_json(f"input length in {unit}", metric, cells, rows)
    if len(cells := _by_rarest(groups, metric.compute)) > 1:
        yield as_json("training frequency of the rarest input token", metric, cells, rows)
    if compare.frequency_metric is not None and same_tokens(groups):
        rate = _rate_metric(task, compare.frequency_metric)
        by = f"training frequency of the {unit.removesuffix('s')}"
        if len(cells := _by_frequency(groups, rate.compute)) > 1:
            yield as_json(by, rate, cells, rows, unit=unit)
    if compare.by_label is not None and same_labels(groups) and (table := _by_label(groups, compare.by_label)) is not None:
        yield table
