"""Whether files of evidence hold what they should: somebody else's may hold anything, with sums that are right.

Shapes: N items, S scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.comparison.costs import Cost
from weft.metrics.frequency import FREQUENCIES
from weft.metrics.items import total
from weft.metrics.metric import metrics_of
from weft.tasks.registry import find_task, known_task

Arrays = Mapping[str, np.ndarray]
TEXTS = ("run", "arch", "task", "data", "key", "item", "policy", "context")
LISTS = ("inputs", "references", "labels", "samples")  # of texts
OPTIONAL = ("seconds", "tokens_per_second", "peak_memory")  # of a cost
MAX_ITEMS = 1e300


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_ITEMS


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _cost(found: Any) -> Iterator[str]:
    if not isinstance(found, dict) or found.keys() != set(Cost._fields):
        yield "cost"
        return
    for name, value in found.items():
        right = isinstance(value, str) if name == "unit" else _is_number(value) or (value is None and name in OPTIONAL)
        if not right:
            yield f"cost.{name}"


def _words(about: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong in evidence.json by itself."""
    yield from (name for name in TEXTS if not isinstance(about.get(name), str))
    yield from (name for name in LISTS if not _are_texts(about.get(name)))
    seed, outputs, scores = about.get("seed"), about.get("outputs"), about.get("scores")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        yield "seed"
    if "outputs" not in about or (outputs is not None and not _are_texts(outputs)):
        yield "outputs"
    task = known_task(about.get("task"))
    pairs = isinstance(scores, list) and all(_are_texts(one) and len(one) == 2 for one in scores)
    if not pairs or task is None or not metrics_of(task.suites, [name for name, _ in scores or ()]):
        yield "scores"
    if not _is_number(about.get("unknown")):
        yield "unknown"
    yield from _cost(about.get("cost"))


def _whole(values: np.ndarray | None, size: int) -> bool:
    return values is not None and values.shape == (size,) and values.dtype == np.int64


def _numbers(about: Mapping[str, Any], arrays: Arrays) -> Iterator[str]:
    """What does not fit to the number of items, or of scores."""
    size = len(about["inputs"])
    yield from (name for name in ("keys", "lengths") if not _whole(arrays.get(name), size))
    if "rarest" in arrays and not _whole(arrays["rarest"], size):
        yield "rarest"
    if len(about["references"]) != size or (about["outputs"] is not None and len(about["outputs"]) != size):
        yield "outputs"
    bounds = arrays.get("scores")
    if bounds is None or bounds.shape != (len(about["scores"]), 3) or bounds.dtype != np.float64:
        yield "scores"
    if not size or (about["outputs"] is not None) != find_task(about["task"]).compare.outputs:
        yield "inputs"
    for name, values in arrays.items():
        wrong = values.dtype != np.float64 or values.ndim not in (1, 2, 3) or len(values) != size
        if wrong and name.startswith(("statistics.", "frequencies.")):
            yield name


def _frequencies(about: Mapping[str, Any], arrays: Arrays) -> Iterator[str]:
    """All that a task counts by frequency, a column for each class, or nothing."""
    found = {name.removeprefix("frequencies.") for name in arrays if name.startswith("frequencies.")}
    rate = find_task(about["task"]).compare.rate
    if found and (rate is None or found != {rate.statistic, "tokens"}):
        yield "frequencies"
    shape = (len(about["inputs"]), len(FREQUENCIES) + 1)
    yield from (f"frequencies.{name}" for name in found if arrays[f"frequencies.{name}"].shape != shape)


def _scored(about: Mapping[str, Any], statistics: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Every score follows from the statistics."""
    sums = total(statistics)
    for name, metric in metrics_of(find_task(about["task"]).suites, [name for name, _ in about["scores"]]).items():
        try:
            with np.errstate(all="ignore"):
                shape = np.shape(metric.of(sums))
        except (KeyError, ValueError, IndexError, TypeError):
            shape = ()
        if shape != (1,):
            yield f"statistics of {name}"


def _all(about: Mapping[str, Any], arrays: Arrays, statistics: Mapping[str, np.ndarray]) -> Iterator[str]:
    yield from _words(about)
    yield from _numbers(about, arrays)
    yield from find_task(about["task"]).compare.check(about, arrays)
    yield from _frequencies(about, arrays)
    yield from _scored(about, statistics)


def find_problem(about: Mapping[str, Any], arrays: Arrays, statistics: Mapping[str, np.ndarray]) -> str:
    """The first part of evidence that is not as it was written; '' where all is well."""
    return next(_all(about, arrays, statistics), "")
