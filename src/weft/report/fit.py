"""`weft.fit`: from a data file to the best model in a given time. A comparison of the baselines and the most promising
architectures, each with its recommended settings; validation data chooses the best one, and test data scores it once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from weft.comparison.evaluation import REPORT, cached_results, describe_failure, evaluate_runs
from weft.comparison.observer import Observer
from weft.comparison.plan import ComparisonOptions, FailedRun, Variants, with_absolute_paths
from weft.comparison.results import EvaluationOptions, RunResults
from weft.comparison.runner import ComparisonRunner, RunnerConfig
from weft.comparison.scores import ranking_metric
from weft.config import apply_overrides, parse_config
from weft.errors import ModelError, TrainingInterrupted, UsageError
from weft.lock import Lock
from weft.metrics.metric import Metric
from weft.report.callback_observer import CallbackObserver, callback_or_bar
from weft.report.comparison import ComparisonInfo, write_comparison
from weft.report.fit_candidates import (
    CandidateArchs,
    Comparison,
    SearchTime,
    candidate_archs,
    plan_candidates,
    split_comparisons,
    start_clock,
    variants_for,
    with_recommended_arch,
)
from weft.report.fit_choice import is_significant, standard_error
from weft.report.fit_ensemble import EnsembleScore, best_ensemble
from weft.report.fit_options import FitOptions, check_data, default_output_dir, run_file
from weft.report.fit_refit import joined_data, refit, refit_values
from weft.report.fit_summary import describe_choice
from weft.runs.callback import CallbackAdapter, TrainCallback, interruptible
from weft.runs.load import load
from weft.runs.recommend import recommend
from weft.runs.resolve import resolve
from weft.runs.status import read_timing
from weft.tasks.detect import detect
from weft.tasks.registry import find_task
from weft.tasks.spec import AnyTask, Evaluation
from weft.text.reading import pluralize

Paths = str | Path | Sequence[str | Path]
FEW_ITEMS = 50  # validation examples: one of them changes the accuracy by 2 points


class Candidate(NamedTuple):
    """A trained model."""

    name: str  # its architecture
    run: Path  # with `refit` or `folds`, the best model's run is the one that was trained again
    scores: Mapping[str, float]  # on the validation data; with folds, the mean
    deviations: Mapping[str, float]  # with folds, the standard deviation; else empty
    num_parameters: int
    seconds: float  # of training, in all folds


@dataclass(frozen=True)
class Fit:
    """The result of a search for the best model.

    Attributes:
        task: The task that was detected or set.
        metric: The metric that chose the best model.
        candidates: All trained models. The first is the best: the one with the best score, or the best baseline if that is not
            significantly worse. The others are ordered by their score.
        test: The scores of the best model on the test data.
        report: The page that compares all models on the validation data; with folds, on that of the first.
        ensemble: The best ensemble of two or three candidates; None with folds, or if the task has none.
        failures: Models that could not be trained.
    """

    task: str
    metric: Metric
    candidates: tuple[Candidate, ...]
    test: Evaluation
    report: Path
    ensemble: EnsembleScore | None = None
    failures: tuple[FailedRun, ...] = ()

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def __repr__(self) -> str:
        return f"Fit({', '.join(row.name for row in self.candidates)}; best run: {self.best.run}; report: {self.report})"


def fit(
    data: Paths,
    *,
    task: str | None = None,
    minutes: float = 10.0,
    output_dir: str | Path | None = None,
    callback: TrainCallback | None = None,
    **options: Any,
) -> Fit:
    """Find the best model for data files in a given time.

    The task and the format are detected. Baselines and the most promising networks are trained with recommended settings;
    validation data chooses the best one, and test data scores it once. The same call resumes a search.

    Args:
        data: A file or directory with training data, or two parallel files.
        task: The task, if it is not the detected one.
        minutes: The time for everything. Baselines are trained to their end; networks share the time that is left.
        output_dir: Where to store the search; by default `runs/fit-NAME`.
        callback: Receives progress and can stop training; without one, a terminal or notebook shows a progress bar.
        **options: `valid` and `test`, files or fractions of the training data (default 0.1); `refit`, whether to train the
            best model again on training and validation data; `folds`, to compare by cross-validation on this many folds of the
            training data, which implies `refit`; `overrides` and `overwrite` as in `weft.train`.

    Returns:
        The candidates, the best one first, its scores on the test data, and the path of the report.

    Raises:
        DataError: The files cannot be read, or their task cannot be told.
        UsageError: An option is unknown or invalid, the time is too short, or the directory contains something else.
        ModelError: No model could be trained.
        TrainingInterrupted: Training was interrupted and has saved; the same call resumes it.

    Example:
        >>> result = weft.fit("reviews.csv", minutes=5)
        >>> weft.load(result.best.run).predict("Great soup.").label
    """
    config = parse_config(FitOptions, options, prefix="fit")
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    given = apply_overrides({}, config.overrides)
    detection = detect(paths, task=task or given.get("task"), data=given.get("data"))
    path = default_output_dir(paths) if output_dir is None else Path(output_dir)
    with callback_or_bar(callback) as train_callback:
        adapter = CallbackAdapter(train_callback)
        with interruptible(adapter):
            observer = CallbackObserver(adapter)
            observer.line(f"{', '.join(map(str, paths))}: {detection.task}: {detection.reason}")
            try:
                values, names = run_file(paths, detection, config), [str(path) for path in paths]
                call = f"weft.fit({(names if len(names) > 1 else names[0])!r}, ...)"
                return fit_models(values, path, config, observer, minutes=minutes, base=Path().resolve(), command=call)
            except TrainingInterrupted:
                raise TrainingInterrupted(path, "the search was interrupted and has saved", "fit again to resume") from None


def fit_models(
    values: Mapping[str, Any],
    output_dir: Path,
    options: FitOptions,
    observer: Observer,
    *,
    minutes: float,
    base: Path,
    command: str,
) -> Fit:
    """Train the candidates for a run file without an architecture, choose the best one and test it.

    Args:
        values: A run file with validation and test data; options that it sets are those of all candidates.
        output_dir: The directory of the comparison, which has a run directory for each candidate.
        options: What to do beside training; `valid`, `test` and `overrides` are already part of the run file.
        observer: Receives the progress.
        minutes: The time for everything.
        base: The directory that paths in `values` are relative to.
        command: The command or call that reproduces the search, for the report.

    Returns:
        The candidates, the best one and its scores on the test data.

    Raises:
        UsageError: The time is too short.
        ModelError: No candidate could be trained.
    """
    if not 0 < minutes < math.inf:
        raise UsageError("minutes", f"must be greater than 0, got {minutes:g}")
    values = with_absolute_paths(with_recommended_arch(values, base), base=base)
    trains_again = options.refit or options.folds is not None
    if trains_again:
        joined = joined_data(resolve(values, base=base))  # refuses files that cannot be joined
        values = values if options.folds is None else {**values, "data": joined}
    check_data(resolve(values, base=base), options.folds)
    comparisons = split_comparisons(values, output_dir, options.folds, overwrite=options.overwrite)
    search = _Search(values, comparisons, output_dir, options, observer, command)
    trained = _train(search, minutes, trains_again=trains_again)
    results, failures = _evaluate(search, trained)
    ranked, metric = _rank(search.task, results, failures)
    num_items = sum(len(fold[ranked[0].name].items.keys) for fold in results)
    if metric.percent and num_items < FEW_ITEMS:
        advice = "" if options.folds else "; `folds` compares on all of the training data"
        observer.line(f"note: {pluralize(num_items, 'validation example')} can hardly tell models apart{advice}")
    ensemble = None
    if options.folds is None:
        ensemble = best_ensemble(search.task, [(row.name, row.run) for row in ranked], metric, observer)
    if trains_again:
        ranked = [ranked[0]._replace(run=_refit(search, ranked[0])), *ranked[1:]]
    observer.show("testing", 0.0)
    test = load(ranked[0].run).evaluate()
    observer.clear()
    choice = describe_choice(ranked, metric, test, folds=options.folds, trains_again=trains_again)
    report = _write_report(search, {row.name: results[0][row.name] for row in ranked}, failures, trained.about, choice)
    return Fit(values["task"], metric, tuple(ranked), test, report, ensemble, tuple(failures))


class _Search(NamedTuple):
    """A search for the best model."""

    values: dict[str, Any]  # the run file
    comparisons: list[Comparison]  # one, or one for each fold
    output_dir: Path
    options: FitOptions
    observer: Observer
    command: str  # reproduces the search

    @property
    def task(self) -> AnyTask:
        return find_task(self.values["task"])


Rows = dict[str, list[Path]]  # the run of each candidate, as a list
Results = list[dict[str, RunResults]]  # of each comparison, by candidate


class _Trained(NamedTuple):
    rows: list[Rows]  # of each comparison
    failures: list[FailedRun]
    about: dict[str, str]  # tokenizer and budget, for the report


def _train(search: _Search, minutes: float, *, trains_again: bool) -> _Trained:
    """Train the baselines, then networks in the time that is left, fold by fold. Only candidates that were trained in all folds
    are returned."""
    archs, comparisons = candidate_archs(search.values), search.comparisons
    trained = _Trained([{} for _ in comparisons], comparisons[0].earlier_failures(), {})
    all_archs, failed = [*archs.baselines, *archs.networks], {failure.name for failure in trained.failures}
    archs = CandidateArchs(*([arch for arch in group if arch not in failed] for group in archs))
    clock = start_clock(comparisons, archs, minutes, trains_again=trains_again)
    for group in filter(None, archs):
        plan = plan_candidates(comparisons[0], group, clock, search.observer)
        trained.failures.extend(plan.failed)
        for failure in plan.failed:
            search.observer.line(f"note: {describe_failure(failure)}")
        if not plan.variants and not archs.baselines:
            raise UsageError("minutes", f"{minutes:g} is too short for any model", f"use at least {clock.minutes_needed:g}")
        if plan.variants:
            options = ComparisonOptions(models=all_archs, budget=("max_minutes", minutes))
            _train_group(search, comparisons, plan, options, clock, trained)
            comparisons = [comparison._replace(overwrite=False) for comparison in comparisons]
    names = [name for name in trained.rows[0] if all(name in rows for rows in trained.rows)]
    if not names:
        raise ModelError("fit", f"no model could be trained: {describe_failure(trained.failures[0])}")
    return trained._replace(rows=[{name: rows[name] for name in names} for rows in trained.rows])


def _train_group(
    search: _Search,
    comparisons: Sequence[Comparison],
    plan: Variants,
    options: ComparisonOptions,
    clock: SearchTime,
    trained: _Trained,
) -> None:
    """Train candidates in all folds, and add them to `trained`."""
    for number, (comparison, rows) in enumerate(zip(comparisons, trained.rows, strict=True), 1):
        if len(comparisons) > 1:
            search.observer.line(f"Fold {number} of {len(comparisons)}")
        config = RunnerConfig(comparison.directory, 1, torch.get_num_threads(), comparison.overwrite)
        variants = variants_for(comparison, plan)._replace(failed=[])
        runner = ComparisonRunner(comparison.values, options, config, base=search.output_dir, plan=variants)
        new_rows, failures, _ = runner.train(search.observer, clock.before_start)
        rows.update(new_rows)
        trained.failures.extend(failures)
        trained.about.update({**runner.about, "budget": f"{clock.minutes:g} minutes for all models"})


def _evaluate(search: _Search, trained: _Trained) -> tuple[Results, list[FailedRun]]:
    """Evaluate all candidates on their validation data. Returns the results and all failures."""
    results, failures = Results(), list(trained.failures)
    for comparison, rows in zip(search.comparisons, trained.rows, strict=True):
        directory, options = comparison.directory, EvaluationOptions(on_validation=True)
        with Lock(directory):
            evaluated, failed = evaluate_runs(
                rows, cached_results(rows, directory), search.observer, options, has_own_run_file=True
            )
        failures += failed
        results.append({name: result for name, (result,) in evaluated.items()})
    return results, failures


def _write_report(
    search: _Search,
    results: Mapping[str, RunResults],
    failures: Sequence[FailedRun],
    about: Mapping[str, str],
    choice: Mapping[str, str],
) -> Path:
    """Write the report of the first comparison, with the choice. `results`: the chosen model is first, so that of equally good
    models it is the best."""
    directory = search.comparisons[0].directory
    info = ComparisonInfo(search.output_dir.name, search.command, None, failures, about=about, choice=choice)
    with Lock(directory):
        write_comparison({name: [result] for name, result in results.items()}, info, directory, search.observer)
    return directory / REPORT


def _rank(task: AnyTask, results: Results, failures: Sequence[FailedRun]) -> tuple[list[Candidate], Metric]:
    """The candidates, the best first, and the metric of the ranking. The best baseline is first if no network is significantly
    better; of equally good candidates, the smallest is first."""
    names = [name for name in results[0] if all(name in fold for fold in results)]
    if not names:
        raise ModelError("fit", f"no model could be read: {describe_failure(failures[0])}")
    metric = ranking_metric(task.name, [fold[name].scores for fold in results for name in names], None)
    by_fold = {name: [fold[name] for fold in results] for name in names}
    candidates = [_candidate(name, by_fold[name], metric) for name in names]

    def order(candidate: Candidate) -> tuple[float, bool, int]:
        score, preset = candidate.scores[metric.name], task.presets[candidate.name]
        return -score if metric.higher_is_better else score, preset.estimator.by_steps, candidate.num_parameters

    ranked = sorted(candidates, key=order)
    baseline = next((row for row in ranked if not task.presets[row.name].estimator.by_steps), None)
    if baseline is not None:
        difference = ranked[0].scores[metric.name] - baseline.scores[metric.name]
        error = standard_error(by_fold[ranked[0].name], by_fold[baseline.name], metric)
        if not is_significant(difference, error):
            ranked = [baseline, *(row for row in ranked if row != baseline)]
    return ranked, metric


def _candidate(name: str, results: Sequence[RunResults], metric: Metric) -> Candidate:
    """A candidate with the mean of its scores; its run is that of the fold with the median score."""
    folds = [{score.name: score.value for score in result.scores} for result in results]
    common = [name for name in folds[0] if all(name in fold for fold in folds)]
    scores = {name: fmean(fold[name] for fold in folds) for name in common}
    deviations = {name: stdev(fold[name] for fold in folds) for name in common} if len(folds) > 1 else {}
    by_score = sorted(range(len(folds)), key=lambda index: folds[index][metric.name])
    middle = results[by_score[(len(folds) - 1) // 2]]
    seconds = sum(read_timing(result.run)[0] for result in results)
    return Candidate(name, middle.run, scores, deviations, middle.cost.num_parameters, seconds)


def _refit(search: _Search, best: Candidate) -> Path:
    """The run directory of the best candidate, trained on training and validation data."""
    run_dir = search.output_dir / f"{best.name}-refit"
    data = "all training data" if search.options.folds else "training and validation data"
    search.observer.line(f"{best.name} is the best model; training it on {data}")
    tokenizer = None
    if search.options.folds is not None:  # a tokenizer of one fold may lack labels that are rare
        tokenizer = recommend(search.values, base=search.output_dir).values.get("tokenizer", {})
    refit(refit_values(best.run, tokenizer), run_dir, search.observer, overwrite=search.options.overwrite)
    return run_dir
