"""Runs as they are measured for a table or a page: what was measured before is read, what is damaged is left out and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import DataError, ModelError, UsageError

if TYPE_CHECKING:
    from weft.comparison.observer import Progress
    from weft.comparison.plan import FailedRun
    from weft.comparison.results import EvaluationOptions, RunResults

COMPARISON, REPORT, EVIDENCE = "comparison.json", "report.html", "results"


class Measured(NamedTuple):
    """What was found of runs."""

    evidence: dict[str, list[RunResults]]  # of every run, rows by name; rows of which nothing is left are not there
    failures: list[FailedRun]  # runs that could not be read


def failed(failure: FailedRun) -> str:
    """'lstm, seed 1: step 3: the loss is nan ...'."""
    seed = "" if failure.seed is None else f", seed {failure.seed}"
    return f"{failure.name}{seed}: {failure.reason}"


def cached_results(groups: Mapping[str, Sequence[Path]], output_dir: Path) -> Callable[[Path], Path]:
    """Where a comparison in `out` keeps the evidence of a run; what a process that was killed left there is removed."""
    from weft import files
    from weft.comparison.plan import directory_name

    names = [run.name for runs in groups.values() for run in runs]
    files.refuse_link(output_dir / EVIDENCE)
    if (output_dir / EVIDENCE).is_dir():
        files.sweep(output_dir / EVIDENCE)
    return lambda run: output_dir / EVIDENCE / (run.name if names.count(run.name) == 1 else directory_name(str(run)))


def refuse_policy(runs: Sequence[Path], context: str | None) -> None:
    """Refuse, before anything is measured, a context policy that one of the runs can't follow; damage is told later."""
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


def refuse_strangers(output_dir: Path) -> None:
    """Leave a folder alone that holds something else than a comparison of runs."""
    from weft.comparison.plan import PLAN, previous_plan

    if (output_dir / PLAN).exists() or previous_plan(output_dir).exists():
        raise UsageError(output_dir, "holds the comparison of a run file", "choose another --output-dir")
    there = sorted(path.name for path in output_dir.iterdir() if path.name[0] != ".") if output_dir.is_dir() else []
    if there and not {COMPARISON, EVIDENCE} & set(there):
        raise UsageError(output_dir, f"is no comparison and not empty ({there[0]})", "choose another --output-dir")


def refuse_missing(data: Sequence[Path]) -> None:
    """Refuse a file that is not there before anything is made or measured."""
    from weft.text.compression import is_pattern

    for path in data:
        if not path.exists() and not is_pattern(path):
            raise DataError(path, "no such file")


def evaluate_runs(
    groups: Mapping[str, Sequence[Path]],
    kept: Callable[[Path], Path | None],
    display: Progress,
    how: EvaluationOptions,
    *,
    data: Sequence[Path] | None = None,
    device: str = "auto",
    named: bool = False,
) -> Measured:
    """What every run does on `data`, or on its test data, all measured in one way; `kept` says where that is kept of a run,
    None if nowhere. `named`: the data stands in a run file of whoever asks, so that other data than training read is measured
    as well."""
    from weft.comparison.bleu_tokenizer import one_tokenizer

    found, failures = dict[str, list["RunResults"]](), list["FailedRun"]()
    runs = [(name, run) for name, group in groups.items() for run in group]
    how = how._replace(tokenize=how.tokenize or one_tokenizer(run for _, run in runs))
    for done, (name, run) in enumerate(runs):

        def progress(part: int, whole: int, run: Path = run, done: int = done) -> None:
            fraction = (done + part / max(1, whole)) / len(runs)
            display.show("measuring", fraction, f"{run.name}  {done} of {len(runs)} runs")

        progress(0, 1)
        try:
            found.setdefault(name, []).append(_evidence(run, kept(run), how, data, device, progress, named))
        except ModelError as error:  # the others are worth their table
            failures.append(_refused(name, run, error))
    display.clear()
    return Measured({name: group for name, group in found.items() if group}, failures)


def _evidence(
    run: Path,
    place: Path | None,
    how: EvaluationOptions,
    data: Sequence[Path] | None,
    device: str,
    progress: Callable[[int, int], None],
    named: bool,
) -> RunResults:
    from weft.comparison.results import evaluate_run, load_or_evaluate
    from weft.log import read_log
    from weft.runs.load import load

    for name in ("metrics.jsonl", "timings.jsonl"):  # the page draws what they say
        read_log(run / name)
    if place is None:
        return evaluate_run(load(run, device=device), data, evaluation=how, progress=progress)
    return load_or_evaluate(run, place, data, evaluation=how, device=device, progress=progress, named=named)


def _refused(name: str, run: Path, error: ModelError) -> FailedRun:
    from weft.comparison.plan import FailedRun
    from weft.runs.run_dir import RunDir

    seed = int(RunDir(run).read_resolved().get("seed", 0))
    return FailedRun(name, seed, str(error), error.exit_code)
