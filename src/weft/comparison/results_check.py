"""Validation of stored results: a file from elsewhere may contain anything, even with correct checksums.

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
TEXTS = ("run", "arch", "task", "data", "cache_key", "item", "policy", "context")
LISTS = ("inputs", "references", "labels", "samples")  # of texts
OPTIONAL = ("seconds", "tokens_per_second", "peak_memory", "num_active_parameters")  # fields of a cost
COST_TEXTS, COST_LISTS = ("inference_unit", "inference_host", "inference_hardware"), ("train_hosts", "train_hardware")
MAX_NUMBER = 1e300


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_file(value: Any) -> bool:
    """Whether a value is a path, a member of an archive, a start and a duration."""
    if not isinstance(value, list) or len(value) != 4 or not _are_texts(value[:2]) or "\0" in value[0]:
        return False
    return _is_number(value[2]) and (value[3] is None or _is_number(value[3]))


def _cost(cost: Any) -> Iterator[str]:
    if not isinstance(cost, dict) or set(Cost._fields) != cost.keys() | set(Cost._field_defaults):
        yield "cost"
        return
    for name, value in cost.items():
        if name in COST_LISTS:
            is_valid = _are_texts(value)
        elif name in COST_TEXTS:
            is_valid = isinstance(value, str)
        else:
            is_valid = _is_number(value) or (value is None and name in OPTIONAL)
        if not is_valid:
            yield f"cost.{name}"


def _texts(document: Mapping[str, Any]) -> Iterator[str]:
    """Invalid fields of results.json."""
    yield from (name for name in TEXTS if not isinstance(document.get(name), str))
    yield from (name for name in LISTS if not _are_texts(document.get(name)))
    seed, outputs, scores = document.get("seed"), document.get("outputs"), document.get("scores")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        yield "seed"
    if "outputs" not in document or (outputs is not None and not _are_texts(outputs)):
        yield "outputs"
    task = known_task(document.get("task"))
    pairs = isinstance(scores, list) and all(_are_texts(pair) and len(pair) == 2 for pair in scores)
    if not pairs or task is None or not metrics_of(task.eval_suites, [name for name, _ in scores or ()]):
        yield "scores"
    if document.get("split") not in ("test", "valid"):
        yield "split"
    if not _is_number(document.get("unknown")):
        yield "unknown"
    files = document.get("files")
    if not isinstance(files, list) or not all(map(_is_file, files)):
        yield "files"
    yield from _cost(document.get("cost"))


def _is_int_vector(values: np.ndarray | None, size: int) -> bool:
    return values is not None and values.shape == (size,) and values.dtype == np.int64


def _numbers(document: Mapping[str, Any], arrays: Arrays) -> Iterator[str]:
    """Arrays and lists that do not match the number of items or scores."""
    size = len(document["inputs"])
    yield from (name for name in ("keys", "lengths") if not _is_int_vector(arrays.get(name), size))
    if "rarest" in arrays and not _is_int_vector(arrays["rarest"], size):
        yield "rarest"
    if len(document["references"]) != size or (document["outputs"] is not None and len(document["outputs"]) != size):
        yield "outputs"
    if document["files"] and len(document["files"]) != size:
        yield "files"
    bounds = arrays.get("scores")
    if bounds is None or bounds.shape != (len(document["scores"]), 3) or bounds.dtype != np.float64:
        yield "scores"
    if not size or (document["outputs"] is not None) != find_task(document["task"]).compare.has_outputs:
        yield "inputs"
    for name, values in arrays.items():
        is_invalid = values.dtype != np.float64 or values.ndim not in (1, 2, 3) or len(values) != size
        if is_invalid and name.startswith(("statistics.", "frequencies.")):
            yield name


def _frequencies(document: Mapping[str, Any], arrays: Arrays) -> Iterator[str]:
    """Statistics by frequency that the task does not have, or of a wrong shape."""
    names = {name.removeprefix("frequencies.") for name in arrays if name.startswith("frequencies.")}
    rate = find_task(document["task"]).compare.frequency_metric
    if names and (rate is None or names != {rate.statistic, "tokens"}):
        yield "frequencies"
    shape = (len(document["inputs"]), len(FREQUENCIES) + 1)
    yield from (f"frequencies.{name}" for name in names if arrays[f"frequencies.{name}"].shape != shape)


def _scored(document: Mapping[str, Any], statistics: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Scores that cannot be computed from the statistics."""
    sums = total(statistics)
    for name, metric in metrics_of(find_task(document["task"]).eval_suites, [name for name, _ in document["scores"]]).items():
        try:
            with np.errstate(all="ignore"):
                shape = np.shape(metric.compute(sums))
        except (KeyError, ValueError, IndexError, TypeError):
            shape = ()
        if shape != (1,):
            yield f"statistics of {name}"


def _all(document: Mapping[str, Any], arrays: Arrays, statistics: Mapping[str, np.ndarray]) -> Iterator[str]:
    yield from _texts(document)
    yield from _numbers(document, arrays)
    yield from find_task(document["task"]).compare.invalid_fields(document, arrays)
    yield from _frequencies(document, arrays)
    yield from _scored(document, statistics)


def find_problem(document: Mapping[str, Any], arrays: Arrays, statistics: Mapping[str, np.ndarray]) -> str:
    """The first invalid part of the results; '' if they are valid."""
    return next(_all(document, arrays, statistics), "")
