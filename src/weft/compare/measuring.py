"""Runs as they are measured for a table or a page: what was measured before is read, what is damaged is left out and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import DataError, ModelError, UsageError

if TYPE_CHECKING:
    from weft.compare.evidence import Evidence, How
    from weft.compare.observer import Progress
    from weft.compare.plan import Refused

COMPARISON, REPORT, EVIDENCE = "comparison.json", "report.html", "evidence"


class Measured(NamedTuple):
    """What was found of runs."""

    evidence: dict[str, list[Evidence]]  # of every run, rows by name; rows of which nothing is left are not there
    failures: list[Refused]  # runs that could not be read


def failed(failure: Refused) -> str:
    """'lstm, seed 1: step 3: the loss is nan ...'."""
    seed = "" if failure.seed is None else f", seed {failure.seed}"
    return f"{failure.name}{seed}: {failure.reason}"


def kept_in(groups: Mapping[str, Sequence[Path]], out: Path) -> Callable[[Path], Path]:
    """Where a comparison in `out` keeps the evidence of a run; what a process that was killed left there is removed."""
    from weft import files
    from weft.compare.plan import folder_name

    names = [run.name for runs in groups.values() for run in runs]
    files.refuse_link(out / EVIDENCE)
    if (out / EVIDENCE).is_dir():
        files.sweep(out / EVIDENCE)
    return lambda run: out / EVIDENCE / (run.name if names.count(run.name) == 1 else folder_name(str(run)))


def refuse_policy(runs: Sequence[Path], context: str | None) -> None:
    """Refuse, before anything is measured, a context policy that one of the runs can't follow; damage is told later."""
    from weft.compare.contexts import check_context
    from weft.errors import ConfigError
    from weft.runs.folder import RunFolder
    from weft.runs.resolve import resolve

    if context is None:
        return
    for run in runs:
        try:
            settings = resolve(RunFolder(run).read_resolved(), base=run)
        except (ConfigError, ModelError):
            continue
        check_context(settings, context, str(run))


def refuse_strangers(out: Path) -> None:
    """Leave a folder alone that holds something else than a comparison of runs."""
    from weft.compare.plan import PLAN, earlier

    if (out / PLAN).exists() or earlier(out).is_there():
        raise UsageError(f"{out}: holds the comparison of a run file; choose another --out")
    there = sorted(path.name for path in out.iterdir() if path.name[0] != ".") if out.is_dir() else []
    if there and not {COMPARISON, EVIDENCE} & set(there):
        raise UsageError(f"{out}: is no comparison and not empty ({there[0]}); choose another --out")


def refuse_missing(data: Sequence[Path]) -> None:
    """Refuse a file that is not there before anything is made or measured."""
    from weft.text.unpack import is_pattern

    for path in data:
        if not path.exists() and not is_pattern(path):
            raise DataError(f"{path}: no such file")


def measured(
    groups: Mapping[str, Sequence[Path]],
    kept: Callable[[Path], Path | None],
    display: Progress,
    how: How,
    *,
    data: Sequence[Path] | None = None,
    device: str = "auto",
    named: bool = False,
) -> Measured:
    """What every run does on `data`, or on its test data, all measured in one way; `kept` says where that is kept of a run,
    None if nowhere. `named`: the data stands in a run file of whoever asks, so that other data than training read is measured
    as well."""
    from weft.compare.bleu import one_tokenizer

    found, failures = dict[str, list["Evidence"]](), list["Refused"]()
    runs = [(name, run) for name, group in groups.items() for run in group]
    how = how._replace(tokenize=how.tokenize or one_tokenizer(run for _, run in runs))
    for done, (name, run) in enumerate(runs):

        def watch(part: int, whole: int, run: Path = run, done: int = done) -> None:
            share = (done + part / max(1, whole)) / len(runs)
            display.show("measuring", share, f"{run.name}  {done} of {len(runs)} runs")

        watch(0, 1)
        try:
            found.setdefault(name, []).append(_evidence(run, kept(run), how, data, device, watch, named))
        except ModelError as error:  # the others are worth their table
            failures.append(_refused(name, run, error))
    display.clear()
    return Measured({name: group for name, group in found.items() if group}, failures)


def _evidence(
    run: Path,
    place: Path | None,
    how: How,
    data: Sequence[Path] | None,
    device: str,
    watch: Callable[[int, int], None],
    named: bool,
) -> Evidence:
    from weft.compare.evidence import gather, gathered
    from weft.log import read_log
    from weft.runs.load import load

    for name in ("metrics.jsonl", "timings.jsonl"):  # the page draws what they say
        read_log(run / name)
    if place is None:
        return gather(load(run, device=device), data, how=how, watch=watch)
    return gathered(run, place, data, how=how, device=device, watch=watch, named=named)


def _refused(name: str, run: Path, error: ModelError) -> Refused:
    from weft.compare.plan import Refused
    from weft.runs.folder import RunFolder

    seed = int(RunFolder(run).read_resolved().get("seed", 0))
    return Refused(name, seed, str(error), error.exit_code)
