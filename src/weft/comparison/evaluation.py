"""Evaluation of the runs of a comparison: stored results are reused, damaged runs are listed as failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import DataError, ModelError, UsageError

if TYPE_CHECKING:
    from weft.comparison.observer import Progress
    from weft.comparison.plan import FailedRun
    from weft.comparison.results import EvaluationOptions, RunResults

COMPARISON, REPORT, RESULTS = "comparison.json", "report.html", "results"


class EvaluatedRuns(NamedTuple):
    """The results of the runs that could be evaluated, and the failures."""

    results: dict[str, list[RunResults]]  # by row; rows without any results are left out
    failures: list[FailedRun]  # runs that could not be read


def describe_failure(failure: FailedRun) -> str:
    """'lstm, seed 1: step 3: loss is nan ...'."""
    seed = "" if failure.seed is None else f", seed {failure.seed}"
    return f"{failure.name}{seed}: {failure.reason}"


def cached_results(groups: Mapping[str, Sequence[Path]], output_dir: Path) -> Callable[[Path], Path]:
    """A function from a run to the directory of its results in `output_dir`. Removes leftovers of killed processes."""
    from weft import files
    from weft.comparison.plan import directory_name

    names = [run.name for runs in groups.values() for run in runs]
    files.refuse_link(output_dir / RESULTS)
    if (output_dir / RESULTS).is_dir():
        files.sweep(output_dir / RESULTS)
    return lambda run: output_dir / RESULTS / (run.name if names.count(run.name) == 1 else directory_name(str(run)))


def check_context_policy(runs: Sequence[Path], context: str | None) -> None:
    """Raise UsageError, before anything is evaluated, if a run cannot apply the context policy; damaged runs are skipped."""
    from weft.comparison.context_policy import check_context
    from weft.errors import ConfigError
    from weft.runs.resolve import resolve
    from weft.runs.run_dir import RunDir

    if context is None:
        return
    for run in runs:
        try:
            config = resolve(RunDir(run).read_resolved(), base=run)
        except (ConfigError, ModelError):
            continue
        check_context(config, context, str(run))


def check_output_dir(output_dir: Path) -> None:
    """Raise UsageError if the directory contains anything but a comparison of runs."""
    from weft.comparison.plan import PLAN, previous_plan

    if (output_dir / PLAN).exists() or previous_plan(output_dir).exists():
        raise UsageError(output_dir, "contains the comparison of a run file", "choose another `output_dir`")
    names = sorted(path.name for path in output_dir.iterdir() if path.name[0] != ".") if output_dir.is_dir() else []
    if names and not {COMPARISON, RESULTS} & set(names):
        raise UsageError(output_dir, f"not empty and not a comparison (contains {names[0]})", "choose another `output_dir`")


def check_data_files(data: Sequence[Path]) -> None:
    """Raise DataError for a missing file, before anything is created or evaluated."""
    from weft.text.compression import is_pattern

    for path in data:
        if not path.exists() and not is_pattern(path):
            raise DataError(path, "file not found")


def evaluate_runs(
    groups: Mapping[str, Sequence[Path]],
    results_dir: Callable[[Path], Path | None],
    display: Progress,
    options: EvaluationOptions,
    *,
    data: Sequence[Path] | None = None,
    device: str = "auto",
    has_own_run_file: bool = False,
) -> EvaluatedRuns:
    """Evaluate every run on `data`, or on its own test data, with the same options. `results_dir` returns the directory
    where the results of a run are stored, or None. `has_own_run_file`: the caller's run file names the data, so
    it may differ from the data at training time."""
    from weft.comparison.bleu_tokenizer import common_tokenizer

    results, failures = dict[str, list["RunResults"]](), list["FailedRun"]()
    runs = [(name, run) for name, group in groups.items() for run in group]
    options = options._replace(tokenize=options.tokenize or common_tokenizer(run for _, run in runs))
    for done, (name, run) in enumerate(runs):

        def progress(part: int, total: int, run: Path = run, done: int = done) -> None:
            fraction = (done + part / max(1, total)) / len(runs)
            display.show("evaluating", fraction, f"{run.name}  {done} of {len(runs)} runs")

        progress(0, 1)
        try:
            results.setdefault(name, []).append(
                _results(run, results_dir(run), options, data, device, progress, has_own_run_file)
            )
        except ModelError as error:  # the other runs are still compared
            failures.append(_failed(name, run, error))
    display.clear()
    return EvaluatedRuns({name: group for name, group in results.items() if group}, failures)


def _results(
    run: Path,
    directory: Path | None,
    options: EvaluationOptions,
    data: Sequence[Path] | None,
    device: str,
    progress: Callable[[int, int], None],
    has_own_run_file: bool,
) -> RunResults:
    from weft.comparison.results import evaluate_run, load_or_evaluate
    from weft.log import read_log
    from weft.runs.load import load

    for name in ("metrics.jsonl", "timings.jsonl"):  # the report plots them: a damaged log is a failure now
        read_log(run / name)
    if directory is None:
        return evaluate_run(load(run, device=device), data, evaluation=options, progress=progress)
    return load_or_evaluate(
        run, directory, data, evaluation=options, device=device, progress=progress, has_own_run_file=has_own_run_file
    )


def _failed(name: str, run: Path, error: ModelError) -> FailedRun:
    from weft.comparison.plan import FailedRun
    from weft.runs.run_dir import RunDir

    seed = int(RunDir(run).read_resolved().get("seed", 0))
    return FailedRun(name, seed, str(error), error.exit_code)
