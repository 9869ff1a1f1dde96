"""What the scores of a task mean, which of them decides, and which says most of a single item."""

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
    """What each of the scores of a run is, by name."""
    return metrics_of(find_task(task).suites, [score.name for score in scores])


def _tokenizers(scores: Iterable[Score]) -> frozenset[str]:
    return frozenset(found for score in scores for found in _TOKENIZER.findall(score.signature))


def refuse_others(task: str, wanted: str | None) -> None:
    """Refuse a score that no run of the task has: before anything is trained or measured for it."""
    known = metric_names(find_task(task).suites)
    if wanted is not None and wanted not in known:
        raise UsageError("--metric", *unknown_name("score", wanted, known))


def has_several_tokenizers(runs: Iterable[Sequence[Score]]) -> bool:
    return len(set(map(_tokenizers, runs))) > 1


def ranking_metric(task: str, runs: Sequence[Sequence[Score]], wanted: str | None) -> Metric:
    """What runs are compared by: the metric that is wanted, else the task's own."""
    common = [score.name for score in runs[0] if all(score.name in {other.name for other in run} for run in runs)]
    if wanted is not None:
        if wanted not in common:
            raise UsageError("--metric", *unknown_name("score", wanted, common))
        candidates = [wanted]
    else:
        candidates = [*find_task(task).decides, *common]
    known, several = metrics(task, runs[0]), has_several_tokenizers(runs)
    fair = [known[name] for name in candidates if name in common and not (several and known[name].per_token)]
    if not fair:
        raise UsageError(
            "compare",
            "the runs have tokenizers of their own, and scores of a token do not compare",
            "choose another --metric, or train with one tokenizer (weft train --tokenizer-from RUN)",
        )
    return fair[0]


def of_items(metric: Metric, known: Mapping[str, Metric]) -> Metric:
    """What single items are told apart by, where runs are compared by `metric`."""
    return metric if metric.single is None else known.get(metric.single, metric)


def item_values(items: ItemStatistics, function: Function) -> Array:
    """(N,): the score of every item by itself."""
    with np.errstate(invalid="ignore", over="ignore"):
        return function(items.statistics)
