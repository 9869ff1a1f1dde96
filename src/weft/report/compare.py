"""`weft.compare`: compare several models, or several runs, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from weft.comparison.architectures import parse_models
from weft.comparison.evaluation import (
    REPORT,
    cached_results,
    check_data_files,
    check_output_dir,
    describe_failure,
    evaluate_runs,
)
from weft.comparison.groups import group_runs, open_runs, split_readable
from weft.comparison.plan import ComparisonOptions, FailedRun, Grid, restore_backup
from weft.comparison.results import EvaluationOptions
from weft.comparison.runner import ComparisonRunner, RunnerConfig
from weft.comparison.scores import check_metric
from weft.comparison.table import Row, rows
from weft.comparison.table_text import cells, terminal
from weft.config import Config, parse_config, read_run_file
from weft.errors import ModelError, TrainingInterrupted, UsageError
from weft.html import html_table
from weft.lock import Lock
from weft.report.callback_observer import CallbackObserver, callback_or_bar
from weft.report.comparison import ComparisonInfo, write_comparison
from weft.runs.callback import CallbackAdapter, TrainCallback, interruptible
from weft.runs.run import Run
from weft.runs.run_dir import make_directory

RunFile = str | Path | Mapping[str, Any]
Runs = Sequence[str | Path | Run[Any, Any]]
WIDTH = 120  # of the table as text


class CompareOptions(Config):
    """The keyword options of `weft.compare`."""

    overrides: list[str] | dict[str, Any] = Field(default_factory=list)  # run file options to change, as in weft.train
    overwrite: bool = False  # start over and replace the comparison in the directory
    max_minutes: float | None = Field(default=None, gt=0)  # training time per run
    max_tokens: int | None = Field(default=None, ge=1)  # training tokens per run
    match_params: int | None = Field(default=None, ge=1)  # match the number of parameters of the networks
    grid: dict[str, list[Any]] = Field(default_factory=dict)  # option values to try
    tune_trials: int | None = Field(default=None, ge=1)  # trials of the hyperparameter search per model
    jobs: int = Field(default=1, ge=1, le=256)  # runs trained in parallel
    metric: str | None = None  # metric for the ranking; None: the task's default
    data: list[str | Path] | None = None  # for existing runs: evaluate on these files instead of their own test data


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: one row per model, the best first.

    Attributes:
        rows: Name, score with confidence interval, p-value of the difference from the best model, size and speed of each model.
        report: The path of the report, a self-contained HTML file.
        failures: Runs that could not be trained or read, and why.
    """

    rows: tuple[Row, ...]
    report: Path
    failures: tuple[FailedRun, ...] = ()

    def __str__(self) -> str:
        return terminal(self.rows, WIDTH)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(row.name for row in self.rows)}; report: {self.report})"

    def _repr_html_(self) -> str:
        head, *lines = cells(self.rows)
        return html_table(head, lines)


def compare(
    run_file_or_runs: RunFile | Runs,
    *,
    models: str | Sequence[str] = (),
    seeds: int = 1,
    output_dir: str | Path | None = None,
    callback: TrainCallback | None = None,
    **options: Any,
) -> Comparison:
    """Train several models on the same data with the same tokenizer and budget and compare them, or compare existing runs.

    Args:
        run_file_or_runs: A run file, as a path or a dict; or run directories, or runs, of one task.
        models: Architectures to compare, or "all"; by default the run file's own, baselines, and an LSTM and a Transformer
            unless the run file's own has the same layer type.
        seeds: Number of runs per model, each with a different seed.
        output_dir: Where to store the comparison; by default `runs/NAME-comparison`, for existing runs `runs/comparison`.
        callback: Receives progress and can stop training; without one, a terminal or notebook shows a progress bar.
        **options: `overrides` and `overwrite` as in `weft.train`; `max_minutes` or `max_tokens`, the budget per run;
            `match_params`, the number of parameters of each network; `grid`, option values to try, such as
            `{"model.num_layers": [1, 2]}`; `tune_trials`, the trials of a hyperparameter search; `jobs`, runs trained in
            parallel; `metric`, the metric for the ranking; for existing runs `data`, a list of paths to evaluate on.

    Returns:
        The table and the path of the report.

    Raises:
        ConfigError: The run file or an override is invalid.
        UsageError: An option is unknown or invalid, or the directory contains something else.
        ModelError: No run could be trained or read.
        TrainingInterrupted: Training was interrupted and has saved; the same call resumes it.

    Example:
        >>> print(weft.compare("run.toml", models=["ngram", "lstm"], seeds=3, max_tokens=1_000_000))
    """
    config = parse_config(CompareOptions, options, prefix="compare")
    with callback_or_bar(callback) as train_callback:
        adapter = CallbackAdapter(train_callback)
        with interruptible(adapter):
            if isinstance(run_file_or_runs, str | Path | Mapping) and not _is_run(run_file_or_runs):
                comparison = _comparison_options(models, seeds, config)
                return _compare_models(run_file_or_runs, comparison, output_dir, config, CallbackObserver(adapter))
            runs = [run_file_or_runs] if isinstance(run_file_or_runs, str | Path) else list(run_file_or_runs)
            _check_no_training_options(models, seeds, config)
            return _compare_runs(runs, output_dir, config, CallbackObserver(adapter))


def _is_run(value: RunFile) -> bool:
    return isinstance(value, str | Path) and Path(value).is_dir()


def _comparison_options(models: str | Sequence[str], seeds: int, config: CompareOptions) -> ComparisonOptions:
    if config.max_minutes is not None and config.max_tokens is not None:
        raise UsageError("compare", "`max_minutes` and `max_tokens` are both set", "set only one")
    if seeds < 1:
        raise UsageError("seeds", f"must be at least 1, got {seeds}")
    if config.data is not None:
        raise UsageError("data", "only available for existing runs", "set data.test in the run file")
    budget: tuple[str, float] | None = None
    if config.max_minutes is not None:
        budget = ("max_minutes", config.max_minutes)
    elif config.max_tokens is not None:
        budget = ("max_tokens", config.max_tokens)
    names = models if isinstance(models, str) else ",".join(models)
    return ComparisonOptions(
        models=parse_models(names) if names else (),
        seeds=seeds,
        budget=budget,
        match_params=config.match_params,
        grid=[Grid(option, values) for option, values in config.grid.items()],
        tune_trials=config.tune_trials,
    )


def _check_no_training_options(models: str | Sequence[str], seeds: int, config: CompareOptions) -> None:
    training = {
        "models": models,
        "seeds": seeds if seeds != 1 else None,
        **config.model_dump(exclude={"metric", "data", "jobs"}),
    }
    if names := [name for name, value in training.items() if value]:
        raise UsageError(names[0], "not available for existing runs", "pass a run file to train models")


def _compare_models(
    run_file: RunFile,
    comparison: ComparisonOptions,
    output_dir: str | Path | None,
    config: CompareOptions,
    observer: CallbackObserver,
) -> Comparison:
    values, base, name = read_run_file(run_file, config.overrides)
    path = Path("runs") / f"{name}-comparison" if output_dir is None else Path(output_dir)
    runner_config = RunnerConfig(path, config.jobs, torch.get_num_threads(), config.overwrite)
    runner = ComparisonRunner(values, comparison, runner_config, base=base.resolve())
    check_metric(runner.task, config.metric)
    try:
        trained = runner.train(observer)
    except TrainingInterrupted:
        raise TrainingInterrupted(path, "the comparison was interrupted and has saved", "compare again to resume") from None
    call = f"weft.compare({'...' if isinstance(run_file, Mapping) else repr(str(run_file))}, ...)"
    info = ComparisonInfo(name, call, config.metric, trained.failures, tuned=trained.tuned, about=runner.about)
    return _compare(trained.rows, info, path, observer, has_own_run_file=True)


def _compare_runs(runs: Runs, output_dir: str | Path | None, config: CompareOptions, observer: CallbackObserver) -> Comparison:
    if not runs:
        raise UsageError("compare", "no runs to compare", "pass run directories or a run file")
    intact, damaged = split_readable([run.directory.path if isinstance(run, Run) else Path(run) for run in runs])
    existing = open_runs(intact, data=config.data is not None)
    check_metric(str(existing[0].config["task"]), config.metric)
    data = None if config.data is None else list(map(Path, config.data))
    check_data_files(data or ())
    path = Path("runs/comparison") if output_dir is None else Path(output_dir)
    check_output_dir(path)
    make_directory(path)
    groups = {name: [run.path for run in group] for name, group in group_runs(existing).items()}
    info = ComparisonInfo(path.name, "weft.compare([...])", config.metric, damaged)
    return _compare(groups, info, path, observer, data=data)


def _compare(
    groups: Mapping[str, Sequence[Path]],
    info: ComparisonInfo,
    output_dir: Path,
    observer: CallbackObserver,
    *,
    data: Sequence[Path] | None = None,
    has_own_run_file: bool = False,
) -> Comparison:
    """Evaluate the runs and write the results."""
    with Lock(output_dir):
        results, failures = evaluate_runs(
            groups,
            cached_results(groups, output_dir),
            observer,
            EvaluationOptions(),
            data=data,
            has_own_run_file=has_own_run_file,
        )
        info = info._replace(failures=[*info.failures, *failures])
        if not results:
            restore_backup(output_dir)
            raise ModelError("compare", f"all runs failed: {describe_failure(info.failures[0])}")
        write_comparison(results, info, output_dir, observer)
    return Comparison(tuple(rows(results, info.metric)), output_dir / REPORT, tuple(info.failures))
