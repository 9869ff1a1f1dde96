"""The metrics of a task: which one ranks runs, and which one scores single items."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from weft.errors import UsageError, unknown_name
from weft.metrics.items import Array, Function, ItemStatistics, Score
from weft.metrics.metric import Metric, metric_names, metrics_of
from weft.tasks.registry import find_task

_TOKENIZER = re.compile(r"\|tokenizer:(\w+)")


def metrics(task: str, scores: Iterable[Score]) -> dict[str, Metric]:
    """The metric of each score of a run, by name."""
    return metrics_of(find_task(task).eval_suites, [score.name for score in scores])


def metric_label(metric: Metric) -> str:
    """The metric as a title: its label, or its name with spaces."""
    return metric.label or re.sub(r"\bf1\b", "F1", metric.name.replace("_", " "))


def _tokenizers(scores: Iterable[Score]) -> frozenset[str]:
    return frozenset(name for score in scores for name in _TOKENIZER.findall(score.signature))


def check_metric(task: str, name: str | None) -> None:
    """Raise UsageError if no run of the task has the metric, before anything is trained or evaluated."""
    names = metric_names(find_task(task).eval_suites)
    if name is not None and name not in names:
        raise UsageError("metric", *unknown_name("metric", name, names))


def has_several_tokenizers(runs: Iterable[Sequence[Score]]) -> bool:
    return len(set(map(_tokenizers, runs))) > 1


def ranking_metric(task: str, runs: Sequence[Sequence[Score]], name: str | None) -> Metric:
    """The metric that runs are ranked by: the one named `name`, or the task's default."""
    common = [score.name for score in runs[0] if all(score.name in {other.name for other in run} for run in runs)]
    if name is not None:
        if name not in common:
            raise UsageError("metric", *unknown_name("metric", name, common))
        candidates = [name]
    else:
        candidates = [*find_task(task).ranking_metrics, *common]
    metrics_by_name = metrics(task, runs[0])
    comparable = [metrics_by_name[candidate] for candidate in candidates if candidate in common]
    if has_several_tokenizers(runs):
        comparable = [metric for metric in comparable if not metric.per_token]
    if not comparable:
        raise UsageError(
            "compare",
            "the runs have different tokenizers, so scores per token are not comparable",
            "choose another `metric` or train all runs with one tokenizer",
        )
    return comparable[0]


def item_metric(metric: Metric, metrics_by_name: Mapping[str, Metric]) -> Metric:
    """The metric for single items if runs are ranked by `metric`."""
    return metric if metric.item_metric is None else metrics_by_name.get(metric.item_metric, metric)


def item_values(items: ItemStatistics, function: Function) -> Array:
    """(N,): the score of each item."""
    with np.errstate(invalid="ignore", over="ignore"):
        return function(items.statistics)
