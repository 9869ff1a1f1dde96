"""comparison.json: all results of a comparison in one document, from which the report is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft import files
from weft.comparison import table
from weft.comparison.breakdown import breakdowns, same_labels
from weft.comparison.context_policy import context_of
from weft.comparison.curves import curve, samples_of
from weft.comparison.previews import make_previews
from weft.comparison.results import RunResults
from weft.comparison.scores import item_metric, item_values, metrics
from weft.errors import ModelError, WeftError
from weft.metrics.items import Array
from weft.metrics.metric import Metric, metric_names
from weft.runs.run_dir import environment, read_environment
from weft.tasks.compare_spec import LabelPairs
from weft.tasks.registry import find_task

Groups = Mapping[str, Sequence[RunResults]]
MAX_DIFFERING, MAX_EXTREME = 300, 50  # items where rows differ most; items that are worst, and best, for all rows
MAX_LABELS = 40  # of a confusion matrix; the rest are merged
UNSEEN, OTHERS = "(unseen)", "(others)"


def to_document(groups: Groups, *, title: str = "", metric_name: str | None = None, command: str = "") -> dict[str, Any]:
    """The content of comparison.json. `groups` maps each row to the results of its seeds; rows are ranked by the metric named
    `metric_name` or the task's default."""
    rows = table.rows(groups, metric_name)
    metric, ordered = rows[0].metric, {row.name: groups[row.name] for row in rows}
    first_runs = {row: runs[0] for row, runs in ordered.items()}
    best = first_runs[rows[0].name]
    single = item_metric(metric, metrics(best.task, best.scores))
    return {
        "title": title,
        "task": best.task,
        "data": best.data,
        "split": best.split,
        "metric": {"name": metric.name, "better": metric.better},
        "test": table.describe_test(groups),
        "test_details": table.describe_test_details(groups),
        "test_items": dict(zip(("count", "item"), table.count_items(groups), strict=True)),
        "insufficient_data": table.insufficient_data(rows, groups) or None,
        "context": context_of(ordered),
        "rows": [table.row_json(row) for row in rows],
        "curves": [_curve(row, run, metric) for row, runs in ordered.items() for run in runs],
        "breakdowns": list(breakdowns(ordered, metric)),
        "item_metric": {"name": single.name, "better": single.better},
        "items": items(first_runs, single),
        "confusions": confusions(first_runs) if same_labels(ordered) else None,
        "samples": {row: list(run.samples) for row, run in first_runs.items() if run.samples},
        "samples_over_training": {row: texts for row, run in first_runs.items() if (texts := samples_of(run.run))},
        "configs": {row: _config(run) for row, run in first_runs.items()},
        "environment": _environment(best),
        "about": _about(first_runs.values()),
        "command": command,
    }


def _curve(row: str, run: RunResults, metric: Metric) -> dict[str, Any]:
    task = find_task(run.task)
    points = curve(run.run, metric.name, metric_names(task.validation_suites), task.compare.curves)
    return {"name": row, "seed": run.seed, **points}


# ---- items


def items(first_runs: Mapping[str, RunResults], metric: Metric) -> list[dict[str, Any]]:
    """The items where rows differ most, and those that are worst and best for all rows, from one run of each row."""
    any_run = next(iter(first_runs.values()))
    values = np.stack([item_values(run.items, metric.compute) for run in first_runs.values()])  # (rows, N)
    selected = select(values, _finer_values(first_runs, metric), higher=metric.higher_is_better)
    previews = make_previews(any_run, selected)
    return [
        {
            "key": int(any_run.items.keys[i]),
            "input": any_run.inputs[i],
            "reference": any_run.references[i],
            "outputs": {row: run.items.outputs[i] for row, run in first_runs.items() if run.items.outputs is not None},
            "values": {row: _number(values[j, i]) for j, row in enumerate(first_runs)},
            **({"preview": previews[i]._asdict()} if i in previews else {}),
            **_infinite([row for j, row in enumerate(first_runs) if math.isinf(values[j, i])]),
        }
        for i in selected
    ]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _infinite(rows: list[str]) -> dict[str, list[str]]:
    """JSON has no infinity: "infinite" lists the rows whose value is infinite."""
    return {"infinite": rows} if rows else {}


def _finer_values(first_runs: Mapping[str, RunResults], metric: Metric) -> Array | None:
    """Item values (rows, N) of a finer metric, higher is better, to break the many ties of accuracy."""
    runs = list(first_runs.values())
    finer = None if metric.tie_breaker is None else metrics(runs[0].task, runs[0].scores).get(metric.tie_breaker)
    if finer is None:
        return None
    values = np.stack([item_values(run.items, finer.compute) for run in runs])
    return values if finer.higher_is_better else -values


def select(values: Array, finer: Array | None, *, higher: bool) -> list[int]:
    """Indices of items by their values (rows, N): first those where rows differ most, then the worst and the best."""
    scores = np.nan_to_num(values if higher else -values, nan=0.0, posinf=1e9, neginf=-1e9)
    tie_breaker = np.zeros_like(scores) if finer is None else np.nan_to_num(finer, neginf=-1e9)
    by_range = np.lexsort((-np.ptp(tie_breaker, axis=0), -np.ptp(scores, axis=0)))
    differing = [i for i in by_range.tolist() if np.ptp(scores[:, i]) > 0][:MAX_DIFFERING]
    by_mean = np.lexsort((tie_breaker.mean(0), scores.mean(0))).tolist()
    return list(dict.fromkeys([*differing, *by_mean[:MAX_EXTREME], *by_mean[::-1][:MAX_EXTREME]]))


# ---- confusions


def _gold_and_predicted(run: RunResults) -> LabelPairs | None:
    confusion = find_task(run.task).compare.confusion
    return None if confusion is None else confusion(run)


def confusions(first_runs: Mapping[str, RunResults]) -> dict[str, Any] | None:
    """Confusion matrices: gold labels as rows, predicted ones as columns; None for multilabel tasks."""
    any_run = next(iter(first_runs.values()))
    pairs = {row: pair for row, run in first_runs.items() if (pair := _gold_and_predicted(run)) is not None}
    if len(pairs) < len(first_runs):
        return None
    labels = [*any_run.labels, UNSEEN]
    gold_counts = np.bincount(next(iter(pairs.values())).gold, minlength=len(labels))
    if not gold_counts[-1]:
        labels, gold_counts = labels[:-1], gold_counts[:-1]
    selected = list(range(len(labels)))
    if len(labels) > MAX_LABELS + 1:
        selected = sorted(np.argsort(-gold_counts, kind="stable")[:MAX_LABELS].tolist())
    index = np.full(len(any_run.labels) + 1, len(selected))  # all other labels are merged
    index[selected] = np.arange(len(selected))
    names = [labels[i] for i in selected] + [OTHERS] * (len(selected) < len(labels))
    matrices = {}
    for row, pair in pairs.items():
        counts = np.zeros((len(names), len(names)), np.int64)
        np.add.at(counts, (index[pair.gold], index[pair.predicted]), 1)
        matrices[row] = counts.tolist()
    return {"labels": names, "matrices": matrices}


# ---- reproducibility


def _config(run: RunResults) -> str:
    try:
        return (run.run / "resolved.toml").read_text(encoding="utf-8")
    except OSError:  # the run directory may be gone
        return ""


TRAIN_FILES = (("train",), ("train.words",), ("train.0", "train.1"), ("train.source",))  # in data/, by task


def _num_training_words(run: Path) -> int | None:
    """The number of words a run was trained on; None if its data is gone or not stored."""
    for names in TRAIN_FILES:
        paths = [path for name in names if (path := run / "data" / f"{name}.json").is_file()]
        if paths:
            try:
                return sum(int(files.read_json(path)["words"]) for path in paths)
            except (WeftError, KeyError, TypeError, ValueError):
                return None
    return None


def _about(runs: Iterable[RunResults]) -> dict[str, str]:
    """The size of the training data, from the first run that still has it."""
    num_words = next((words for run in runs if (words := _num_training_words(run.run)) is not None), None)
    return {} if num_words is None else {"training data": f"{num_words:,} words"}


def _environment(run: RunResults) -> dict[str, Any]:
    try:
        return read_environment(run.run)
    except ModelError:
        return environment()
