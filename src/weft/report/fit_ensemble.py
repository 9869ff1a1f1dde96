"""The ensemble of the best candidates of `weft.fit`, on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from weft.comparison.observer import Observer
from weft.comparison.results import EvaluationOptions, evaluate
from weft.errors import UsageError
from weft.metrics.metric import Metric
from weft.runs.ensemble import FITTED
from weft.runs.load import ensemble
from weft.tasks.spec import AnyTask

MAX_MEMBERS = 3


class EnsembleScore(NamedTuple):
    """An ensemble of candidates, which has no run directory of its own."""

    names: tuple[str, ...]
    runs: tuple[Path, ...]  # for `weft.ensemble`
    score: float  # of the ranking metric, on the validation data
    is_fitted: bool  # whether the weights are fitted on the validation data; else they are equal

    @property
    def name(self) -> str:
        return f"ensemble of {' + '.join(self.names)}"


def best_ensemble(
    task: AnyTask, candidates: Sequence[tuple[str, Path]], metric: Metric, observer: Observer
) -> EnsembleScore | None:
    """The better ensemble of the first two or three candidates, which are ordered by their score; None if the task has none."""
    if not task.supports_ensembles or len(candidates) < 2:
        return None
    tried = [_evaluate(task, candidates[:size], metric, observer) for size in range(2, min(MAX_MEMBERS, len(candidates)) + 1)]
    scored = [ensemble_score for ensemble_score in tried if ensemble_score is not None]
    if not scored:
        return None
    return max(scored, key=lambda result: result.score if metric.higher_is_better else -result.score)


def _evaluate(task: AnyTask, members: Sequence[tuple[str, Path]], metric: Metric, observer: Observer) -> EnsembleScore | None:
    names, runs = zip(*members, strict=True)
    is_fitted = task.fit_weights is not None
    observer.show("evaluating", 0.0, f"ensemble of {len(runs)} runs")
    try:
        combined = ensemble(runs, weights=FITTED if is_fitted else None)
    except UsageError:  # such as models of different target tokenizers
        return None
    combined.config.hide_test_data()
    combined.directory.has_own_run_file = True
    options = EvaluationOptions(on_validation=True)
    scores = evaluate(combined, None, options, lambda done, total: None).scores
    observer.clear()
    return EnsembleScore(names, runs, scores[metric.name].value, is_fitted) if metric.name in scores else None
