"""`weft.fit`: from a data file to the best model in a given time. A comparison of the baselines and the most promising
architectures, each with its recommended settings; validation data chooses the best one, and test data scores it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from weft.comparison.applicable_options import applicable_options
from weft.comparison.architectures import default_archs
from weft.comparison.evaluation import REPORT, cached_results, describe_failure, evaluate_runs
from weft.comparison.observer import Observer
from weft.comparison.plan import ComparisonOptions, FailedRun, Variant, Variants, directory_name, with_absolute_paths
from weft.comparison.results import EvaluationOptions
from weft.comparison.runner import ComparisonRunner, RunnerConfig
from weft.errors import ModelError, UsageError
from weft.lock import Lock
from weft.log import read_log
from weft.metrics.metric import Metric, metrics_of
from weft.report.comparison import ComparisonInfo, write_comparison
from weft.runs.load import load
from weft.runs.recommend import recommend
from weft.runs.run_dir import RunDir
from weft.runs.status import VALID, read_run_status
from weft.runs.trial import recommend_within
from weft.tasks.registry import find_task
from weft.tasks.spec import AnyTask, Evaluation

FRACTION = 0.1  # of the data for validation, and for the test, unless there are files for them


class FitOptions(NamedTuple):
    """The options of a search for the best model."""

    minutes: float  # of training, in total
    overwrite: bool = False


class Candidate(NamedTuple):
    """A trained model."""

    name: str  # its architecture
    run: Path
    scores: Mapping[str, float]  # on the validation data
    num_parameters: int
    seconds: float  # of training


@dataclass(frozen=True)
class Fit:
    """The result of a search for the best model.

    Attributes:
        metric: The metric that chose the best model.
        candidates: All trained models, the best first.
        test: The scores of the best model on the test data.
        report: The page that compares all models on the validation data.
        failures: Models that could not be trained.
    """

    metric: Metric
    candidates: tuple[Candidate, ...]
    test: Evaluation
    report: Path
    failures: tuple[FailedRun, ...] = ()

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def with_splits(values: Mapping[str, Any], valid: Any = None, test: Any = None) -> dict[str, Any]:
    """The run file with validation and test data: files, or fractions of the training data."""
    data = values["data"]
    given = {"valid": valid or data.get("valid") or FRACTION, "test": test or data.get("test") or FRACTION}
    return {**values, "data": {**data, **given}}


def fit_models(values: Mapping[str, Any], output_dir: Path, options: FitOptions, observer: Observer, *, base: Path) -> Fit:
    """Train the candidates for a run file without an architecture, choose the best one and test it.

    Args:
        values: A run file with validation and test data; options that it sets are those of all candidates.
        output_dir: The directory of the comparison, which has a run directory for each candidate.
        options: The time, and whether to start over.
        observer: Receives the progress.
        base: The directory that paths in `values` are relative to.

    Returns:
        The candidates, the best one and its scores on the test data.

    Raises:
        UsageError: The time is too short.
        ModelError: No candidate could be trained.
    """
    values = with_absolute_paths({**values, "model": recommended_model(values, base)}, base=base)
    archs = sorted(
        default_archs(values), key=lambda arch: find_task(values["task"]).presets[arch].estimator.by_steps
    )  # baselines first
    plan = _plan(_Search(values, archs, output_dir, options, observer))
    comparison = ComparisonOptions(models=archs, budget=("max_minutes", options.minutes))
    runner_config = RunnerConfig(output_dir, 1, torch.get_num_threads(), options.overwrite)
    runner = ComparisonRunner(values, comparison, runner_config, base=base, plan=plan)
    trained = runner.train(observer)
    info = ComparisonInfo(output_dir.name, "weft fit", None, trained.failures, about=runner.about)
    return _choose(find_task(values["task"]), trained.rows, info, output_dir, observer)


def recommended_model(values: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """[model] with the recommended architecture."""
    model = dict(values.get("model", {}))
    return {**model, "arch": model.get("arch") or recommend(values, base=base).config.arch}


class _Search(NamedTuple):
    """What the candidates have in common."""

    values: dict[str, Any]  # the run file
    archs: Sequence[str]
    output_dir: Path
    options: FitOptions
    observer: Observer

    @property
    def minutes(self) -> float:
        """The time of each network."""
        presets = find_task(self.values["task"]).presets
        return self.options.minutes / max(1, sum(presets[arch].estimator.by_steps for arch in self.archs))


def _plan(search: _Search) -> Variants:
    """All candidates that can be trained in their part of the time."""
    variants, failed = list[Variant](), list[FailedRun]()
    for arch in search.archs:
        try:
            variants.append(_variant(search, arch))
        except UsageError as error:
            # without its fix, the time that is enough for this network alone
            failed.append(FailedRun(arch, None, error.problem, error.exit_code))
            search.observer.line(f"note: {describe_failure(failed[-1])}")
    if not variants:
        raise UsageError("minutes", f"{search.options.minutes:g} is too short for any model", failed[0].reason)
    return Variants(variants, failed, [])


def _variant(search: _Search, arch: str) -> Variant:
    """A candidate with the best settings for its part of the time. One that was begun before keeps its settings."""
    values, base = search.values, search.output_dir
    begun = RunDir(search.output_dir / f"{directory_name(arch)}-{values.get('seed', 0)}")
    if begun.resolved.is_file() and not search.options.overwrite:
        return Variant(arch, {name: value for name, value in begun.read_resolved().items() if name != "seed"})
    shared = recommend(values, base=base).values
    given = {name: value for name, value in values.items() if name != "seed"}
    tables = {table: shared[table] for table in ("data", "tokenizer") if table in shared}
    run_file: dict[str, Any] = applicable_options(given, arch, base=base).values | tables
    within = recommend_within(run_file, search.minutes, base=base, callback=search.observer.training())
    return Variant(arch, {**within.values, "recommend": False})


def validation_scores(task: AnyTask, run: Path) -> dict[str, float]:
    """The validation scores of the weights that a run has kept, by the name of the metric."""
    status, records = read_run_status(run), read_log(run / "metrics.jsonl")
    kept = [record for record in records if record["step"] == status.best_step] or records[-1:]
    scores = {name.removeprefix(VALID): value for record in kept for name, value in record.items() if name.startswith(VALID)}
    return {name: scores[name] for name in metrics_of(task.validation_suites, scores)}


def _choose(
    task: AnyTask, rows: Mapping[str, Sequence[Path]], info: ComparisonInfo, output_dir: Path, observer: Observer
) -> Fit:
    """Rank the candidates by their validation scores, write the report on these, and test the best one."""
    candidates = [_candidate(task, name, run) for name, (run,) in rows.items()]
    if not candidates:
        raise ModelError("fit", f"no model could be trained: {describe_failure(info.failures[0])}")
    names = [name for name in candidates[0].scores if all(name in candidate.scores for candidate in candidates)]
    name = next(name for name in (*task.ranking_metrics, *names) if name in names)
    metric = metrics_of(task.validation_suites, {name: 0.0})[name]
    ranked = sorted(candidates, key=lambda candidate: candidate.scores[name], reverse=metric.higher_is_better)
    with Lock(output_dir):
        results, damaged = evaluate_runs(
            rows, cached_results(rows, output_dir), observer, EvaluationOptions(on_validation=True), has_own_run_file=True
        )
        failures = [*info.failures, *damaged]
        write_comparison(results, info._replace(failures=failures), output_dir, observer)
    test = load(ranked[0].run).evaluate()
    observer.clear()
    return Fit(metric, tuple(ranked), test, output_dir / REPORT, tuple(failures))


def _candidate(task: AnyTask, name: str, run: Path) -> Candidate:
    timings = read_log(run / "timings.jsonl")
    seconds = float(timings[-1].get("seconds") or 0.0) if timings else 0.0
    return Candidate(name, run, validation_scores(task, run), load(run, device="cpu").num_parameters, seconds)
