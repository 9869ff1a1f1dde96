"""`weft.comparison`: several models, or several runs, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from weft.comparison.architectures import parse_models
from weft.comparison.evaluation import REPORT, cached_results, evaluate_runs, failed, refuse_missing, refuse_strangers
from weft.comparison.groups import find, group_runs, readable
from weft.comparison.plan import ComparisonOptions, FailedRun, Grid, bring_back
from weft.comparison.results import EvaluationOptions
from weft.comparison.runner import ComparisonRunner, Place
from weft.comparison.scores import refuse_others
from weft.comparison.table import Row, rows
from weft.comparison.table_text import cells, terminal
from weft.config import Config, parse_config, read_run_file
from weft.errors import ModelError, TrainingInterrupted, UsageError
from weft.html import html_table
from weft.lock import Lock
from weft.report.comparison import ComparisonInfo, write_comparison
from weft.runs.callback import CallbackAdapter, TrainCallback, interruptible
from weft.runs.run import Run
from weft.runs.run_dir import make_directory

if TYPE_CHECKING:
    from weft.comparison.train import Outcome, State

RunFile = str | Path | Mapping[str, Any]
Runs = Sequence[str | Path | Run[Any, Any]]
WIDTH = 120  # of the table as text


class CompareOptions(Config):
    """What a caller may say about a comparison, by name."""

    overrides: list[str] | dict[str, Any] = Field(default_factory=list)  # options to change, as in weft.training
    overwrite: bool = False  # start over: the new comparison replaces the one in the directory, once it is finished
    max_minutes: float | None = Field(default=None, gt=0)  # training time of each run
    max_tokens: int | None = Field(default=None, ge=1)  # training tokens of each run
    match_params: int | None = Field(default=None, ge=1)  # about how many parameters each network is to have
    grid: dict[str, list[Any]] = Field(default_factory=dict)  # values of options that every model is trained with
    tune_trials: int | None = Field(default=None, ge=1)  # trials for the settings of each model
    jobs: int = Field(default=1, ge=1, le=256)  # runs that are trained at a time
    metric: str | None = None  # what decides; None: the task's own
    data: list[str | Path] | None = None  # of runs: what they are evaluated on, in place of their own test data


@dataclass(frozen=True)
class Comparison:
    """Several models, or runs, compared: a row for each, the best first.

    Attributes:
        rows: Of each model its name, its score with an interval, the p-value of the difference from the best one, its size and
            speed.
        report: The page, an HTML file that needs nothing else.
        failures: What could not be trained or read, and why.
    """

    rows: tuple[Row, ...]
    report: Path
    failures: tuple[FailedRun, ...] = ()

    def __str__(self) -> str:
        return terminal(self.rows, WIDTH)

    def _repr_html_(self) -> str:
        head, *lines = cells(self.rows)
        return html_table(head, lines)


class _RunsCallback:
    """The runs of a comparison, as a callback hears of them."""

    def __init__(self, callback: CallbackAdapter, what: str) -> None:
        self.callback, self.what = callback, what

    def on_note(self, text: str) -> None:
        self.callback.on_note(text)

    def on_runs(self, states: Sequence[State]) -> None:
        done = sum(state.progress.fraction for state in states)
        self.callback.on_progress(self.what, round(1000 * done), 1000 * len(states))

    def on_run_end(self, outcome: Outcome) -> None:
        told = "trained" if outcome.code == 0 else outcome.reason
        self.callback.on_note(f"{outcome.planned.output_dir.name}: {told}")

    def should_stop(self) -> bool:
        return self.callback.should_stop()


class _Observer:
    """A comparison, as a callback hears of it."""

    def __init__(self, callback: CallbackAdapter) -> None:
        self.callback = callback

    def line(self, text: str) -> None:
        self.callback.on_note(text)

    def show(self, what: str, fraction: float, detail: str = "") -> None:
        self.callback.on_progress(what, round(1000 * fraction), 1000)

    def clear(self) -> None:
        """Whoever is told of the next work sees that this one is over."""

    def training(self) -> CallbackAdapter:
        return self.callback

    def runs(self, what: str) -> _RunsCallback:
        return _RunsCallback(self.callback, what)

    def saving(self) -> None:
        self.callback.saves = True


def compare(
    run_file_or_runs: RunFile | Runs,
    *,
    models: str | Sequence[str] = (),
    seeds: int = 1,
    output_dir: str | Path | None = None,
    callback: TrainCallback | None = None,
    **options: Any,
) -> Comparison:
    """Train several models on the same data, tokenizer and budget and compare them, or compare runs that are there.

    Args:
        run_file_or_runs: A run file, by its path or as a dict; or run directories, or runs, of one task.
        models: Architectures to compare, or "all"; by default the run file's own, baselines, an LSTM and a Transformer.
        seeds: Runs of each model, each with a seed of its own.
        output_dir: Where it all goes; `runs/NAME-comparison` by default, `runs/comparison` of runs.
        callback: Hears of progress, and can stop training; without one there is a progress bar in a terminal or notebook.
        **options: `overrides` and `overwrite` as in `weft.training`; `max_minutes` or `max_tokens`, the budget of each run;
            `match_params`, so many parameters for every network; `grid`, values of options to try, such as
            `{"model.num_layers": [1, 2]}`; `tune_trials`; `jobs`, runs trained at a time; `metric`, what decides; and, of runs,
            `data`, a list of paths to evaluate on.

    Returns:
        The table, and the path of the report.

    Raises:
        ConfigError: The run file or an override is wrong.
        UsageError: An option is unknown or wrong, or the directory holds something else.
        ModelError: No run could be trained or read.
        TrainingInterrupted: Training was interrupted and has saved; the same call goes on.

    Example:
        >>> print(weft.compare("run.toml", models=["ngram", "lstm"], seeds=3, max_tokens=1_000_000))
    """
    wanted = parse_config(CompareOptions, options, at="compare")
    with _shown(callback) as shown:
        watcher = CallbackAdapter(shown)
        with interruptible(watcher):
            if isinstance(run_file_or_runs, str | Path | Mapping) and not _is_run(run_file_or_runs):
                asked = _asked(models, seeds, wanted)
                return _trained(run_file_or_runs, asked, output_dir, wanted, _Observer(watcher))
            runs = [run_file_or_runs] if isinstance(run_file_or_runs, str | Path) else list(run_file_or_runs)
            _refuse_training(models, seeds, wanted)
            return _existing(runs, output_dir, wanted, _Observer(watcher))


def _is_run(given: RunFile) -> bool:
    return isinstance(given, str | Path) and Path(given).is_dir()


def _shown(callback: TrainCallback | None) -> Any:
    if callback is not None:
        return nullcontext(callback)
    from weft.runs.progress_bar import progress_bar

    return progress_bar()


def _asked(models: str | Sequence[str], seeds: int, wanted: CompareOptions) -> ComparisonOptions:
    if wanted.max_minutes is not None and wanted.max_tokens is not None:
        raise UsageError("compare", "max_minutes and max_tokens are two budgets", "give one")
    if seeds < 1:
        raise UsageError("compare", f"seeds must be at least 1, not {seeds}")
    if wanted.data is not None:
        raise UsageError("compare", "data is for runs that are there", "a run file names its own, data.test")
    budget: tuple[str, float] | None = None
    if wanted.max_minutes is not None:
        budget = ("minutes", wanted.max_minutes)
    elif wanted.max_tokens is not None:
        budget = ("tokens", wanted.max_tokens)
    named = models if isinstance(models, str) else ",".join(models)
    return ComparisonOptions(
        models=parse_models(named) if named else (),
        seeds=seeds,
        budget=budget,
        match_params=wanted.match_params,
        grid=[Grid(option, values) for option, values in wanted.grid.items()],
        tune_trials=wanted.tune_trials,
    )


def _refuse_training(models: str | Sequence[str], seeds: int, wanted: CompareOptions) -> None:
    own = {"models": models, "seeds": seeds if seeds != 1 else None, **wanted.model_dump(exclude={"metric", "data", "jobs"})}
    if given := [name for name, value in own.items() if value]:
        raise UsageError("compare", f"{given[0]} is for a comparison of a run file", "runs that are there are not trained")


def _trained(
    run_file: RunFile, asked: ComparisonOptions, output_dir: str | Path | None, wanted: CompareOptions, observer: _Observer
) -> Comparison:
    values, base, name = read_run_file(run_file, wanted.overrides)
    out = Path("runs") / f"{name}-comparison" if output_dir is None else Path(output_dir)
    place = Place(out, wanted.jobs, torch.get_num_threads(), wanted.overwrite)
    comparing = ComparisonRunner(values, asked, place, base=base.resolve())
    refuse_others(comparing.task, wanted.metric)
    try:
        trained = comparing.train(observer)
    except TrainingInterrupted:
        raise TrainingInterrupted(out, "the comparison was interrupted and has saved", "compare again to go on") from None
    call = f"weft.compare({'...' if isinstance(run_file, Mapping) else repr(str(run_file))}, ...)"
    facts = ComparisonInfo(name, call, wanted.metric, trained.failures, tuned=trained.tuned, about=comparing.about)
    return _compared(trained.rows, facts, out, observer, named=True)


def _existing(runs: Runs, output_dir: str | Path | None, wanted: CompareOptions, observer: _Observer) -> Comparison:
    if not runs:
        raise UsageError("compare", "no run is given", "give run directories, or a run file")
    kept, damaged = readable([run.directory.path if isinstance(run, Run) else Path(run) for run in runs])
    found = find(kept, data=wanted.data is not None)
    refuse_others(str(found[0].config["task"]), wanted.metric)
    data = None if wanted.data is None else list(map(Path, wanted.data))
    refuse_missing(data or ())
    out = Path("runs/comparison") if output_dir is None else Path(output_dir)
    refuse_strangers(out)
    make_directory(out)
    groups = {name: [run.path for run in group] for name, group in group_runs(found).items()}
    return _compared(groups, ComparisonInfo(out.name, "weft.compare([...])", wanted.metric, damaged), out, observer, data=data)


def _compared(
    groups: Mapping[str, Sequence[Path]],
    facts: ComparisonInfo,
    out: Path,
    observer: _Observer,
    *,
    data: Sequence[Path] | None = None,
    named: bool = False,
) -> Comparison:
    """Measure, and write down what was found."""
    with Lock(out):
        evidence, unread = evaluate_runs(
            groups, cached_results(groups, out), observer, EvaluationOptions(), data=data, named=named
        )
        facts = facts._replace(failures=[*facts.failures, *unread])
        if not evidence:
            bring_back(out)
            raise ModelError("compare", f"no run could be compared: {failed(facts.failures[0])}")
        write_comparison(evidence, facts, out, observer)
    return Comparison(tuple(rows(evidence, facts.score)), out / REPORT, tuple(facts.failures))
