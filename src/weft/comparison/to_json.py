"""comparison.json: everything that a comparison found, as one document that the report is drawn from."""

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
from weft.comparison.results import RunResults
from weft.comparison.scores import item_values, metrics, of_items
from weft.errors import ModelError, WeftError
from weft.metrics.items import Array
from weft.metrics.metric import Metric, metric_names
from weft.runs.run_dir import environment, read_environment
from weft.tasks.compare_spec import Confused
from weft.tasks.registry import find_task

Groups = Mapping[str, Sequence[RunResults]]
DIFFER, EXTREME = 300, 50  # items where rows differ most, and that are worst, and best, for all
CLASSES = 40  # of a confusion matrix; the others are one
NEVER, OTHERS = "(never seen)", "(others)"


def to_document(groups: Groups, *, title: str = "", score: str | None = None, command: str = "") -> dict[str, Any]:
    """What was found, of rows by name, each with the evidence of its seeds; `score` decides instead of the task's own."""
    found = table.rows(groups, score)
    decides, ordered = found[0].deciding, {row.name: groups[row.name] for row in found}
    first = {row: runs[0] for row, runs in ordered.items()}
    best = first[found[0].name]
    item_metric = of_items(decides, metrics(best.task, best.scores))
    return {
        "title": title,
        "task": best.task,
        "data": best.data,
        "score": {"name": decides.name, "better": decides.better},
        "test": table.describe_test(groups),
        "tested": dict(zip(("count", "item"), table.significance_test(groups), strict=True)),
        "too_little": table.insufficient_data(found, groups) or None,
        "context": context_of(ordered),
        "rows": [table.row_json(row) for row in found],
        "curves": [_curve(row, run, decides) for row, runs in ordered.items() for run in runs],
        "breakdowns": list(breakdowns(ordered, decides)),
        "item_score": {"name": item_metric.name, "better": item_metric.better},
        "items": items(first, item_metric),
        "confusions": confusions(first) if same_labels(ordered) else None,
        "samples": {row: list(run.samples) for row, run in first.items() if run.samples},
        "samples_over_training": {row: texts for row, run in first.items() if (texts := samples_of(run.run))},
        "settings": {row: _settings(run) for row, run in first.items()},
        "environment": _environment(best),
        "about": _about(first.values()),
        "command": command,
    }


def _curve(row: str, run: RunResults, decides: Metric) -> dict[str, Any]:
    return {"name": row, "seed": run.seed, **curve(run.run, decides.name, metric_names(find_task(run.task).validation))}


# ---- items


def items(first: Mapping[str, RunResults], metric: Metric) -> list[dict[str, Any]]:
    """The items where rows differ most, and those that are worst and best for all of them, of one run each."""
    one = next(iter(first.values()))
    values = np.stack([item_values(run.items, metric.of) for run in first.values()])  # (rows, N)
    chosen = select(values, _second(first, metric), higher=metric.upwards)
    return [
        {
            "key": int(one.items.keys[at]),
            "input": one.inputs[at],
            "reference": one.references[at],
            "outputs": {row: run.items.outputs[at] for row, run in first.items() if run.items.outputs is not None},
            "values": {row: _number(values[place, at]) for place, row in enumerate(first)},
            **_infinite([row for place, row in enumerate(first) if math.isinf(values[place, at])]),
        }
        for at in chosen
    ]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _infinite(rows: list[str]) -> dict[str, list[str]]:
    """JSON has no infinity: which rows have it is told beside."""
    return {"infinite": rows} if rows else {}


def _second(first: Mapping[str, RunResults], metric: Metric) -> Array | None:
    """A finer score (rows, N), the higher the better: of right and wrong labels there are ties in plenty."""
    runs = list(first.values())
    finer = None if metric.finer is None else metrics(runs[0].task, runs[0].scores).get(metric.finer)
    if finer is None:
        return None
    values = np.stack([item_values(run.items, finer.of) for run in runs])
    return values if finer.upwards else -values


def select(values: Array, finer: Array | None, *, higher: bool) -> list[int]:
    """Items by value (rows, N): those where rows are farthest apart first, then the worst and the best that are left."""
    known = np.nan_to_num(values if higher else -values, nan=0.0, posinf=1e9, neginf=-1e9)
    second = np.zeros_like(known) if finer is None else np.nan_to_num(finer, neginf=-1e9)
    spread = np.lexsort((-np.ptp(second, axis=0), -np.ptp(known, axis=0)))
    apart = [at for at in spread.tolist() if np.ptp(known[:, at]) > 0][:DIFFER]
    level = np.lexsort((second.mean(0), known.mean(0))).tolist()
    return list(dict.fromkeys([*apart, *level[:EXTREME], *level[::-1][:EXTREME]]))


# ---- confusions


def _confused(run: RunResults) -> Confused | None:
    confusion = find_task(run.task).compare.confusion
    return None if confusion is None else confusion(run)


def confusions(first: Mapping[str, RunResults]) -> dict[str, Any] | None:
    """How often each label, a row, was taken for each, a column; None where an example may have several."""
    one = next(iter(first.values()))
    pairs = {row: found for row, run in first.items() if (found := _confused(run)) is not None}
    if len(pairs) < len(first):
        return None
    labels = [*one.labels, NEVER]
    meant = np.bincount(next(iter(pairs.values())).meant, minlength=len(labels))
    if not meant[-1]:
        labels, meant = labels[:-1], meant[:-1]
    kept = list(range(len(labels)))
    if len(labels) > CLASSES + 1:
        kept = sorted(np.argsort(-meant, kind="stable")[:CLASSES].tolist())
    place = np.full(len(one.labels) + 1, len(kept))  # all others are one
    place[kept] = np.arange(len(kept))
    named = [labels[at] for at in kept] + [OTHERS] * (len(kept) < len(labels))
    matrices = {}
    for row, found in pairs.items():
        counts = np.zeros((len(named), len(named)), np.int64)
        np.add.at(counts, (place[found.meant], place[found.said]), 1)
        matrices[row] = counts.tolist()
    return {"labels": named, "matrices": matrices}


# ---- how to repeat it


def _settings(run: RunResults) -> str:
    try:
        return (run.run / "resolved.toml").read_text(encoding="utf-8")
    except OSError:  # evidence outlives the run
        return ""


TEXTS = (("train",), ("train.words",), ("train.0", "train.1"), ("train.source",))  # of data/, by task: what is read


def _words(run: Path) -> int | None:
    """How many words a run was trained on; None where its data is gone, or it keeps none."""
    for names in TEXTS:
        places = [place for name in names if (place := run / "data" / f"{name}.json").is_file()]
        if places:
            try:
                return sum(int(files.read_json(place)["words"]) for place in places)
            except (WeftError, KeyError, TypeError, ValueError):
                return None
    return None


def _about(runs: Iterable[RunResults]) -> dict[str, str]:
    """What the training data is, in words, by the first run that still has it."""
    known = next((words for run in runs if (words := _words(run.run)) is not None), None)
    return {} if known is None else {"training data": f"{known:,} words"}


def _environment(run: RunResults) -> dict[str, Any]:
    try:
        return read_environment(run.run)
    except ModelError:
        return environment()
