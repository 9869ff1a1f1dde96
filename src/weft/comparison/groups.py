"""Runs that are there already, as rows: those that differ in their seed alone are one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.comparison.applicable_options import leaves
from weft.comparison.plan import FailedRun
from weft.config import describe_differences
from weft.errors import ModelError, UsageError
from weft.runs.resolve import read_settings
from weft.runs.run_dir import open_run_dir

READING = ("context_length", "stride", "max_length", "truncate")  # how much is read at once: of the same data either way
SHOWN = 48  # characters of a row's name; what tells it from others may take more
FILES = ("comparison.json", "plan.toml")  # what only a comparison's folder has


class FoundRun(NamedTuple):
    """A run that is compared."""

    path: Path
    config: dict[str, Any]  # resolved.toml

    @property
    def arch(self) -> str:
        return str(self.config["model"]["arch"])

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison, which `weft compare runs/*` is not about."""
    return any((path / name).is_file() for name in FILES)


def readable(paths: Sequence[Path]) -> tuple[list[Path], list[FailedRun]]:
    """The runs whose settings can be read, and those whose can't; what is no run at all is a slip, and refused."""
    kept, damaged = list[Path](), list[FailedRun]()
    for path in paths:
        directory = open_run_dir(path)
        try:
            read_settings(directory)
            kept.append(path)
        except ModelError as error:
            damaged.append(FailedRun(path.resolve().name, None, str(error), error.exit_code))
    if damaged and not kept:
        raise ModelError("", damaged[0].reason)
    return kept, damaged


def find(paths: Sequence[Path], *, data: bool = False) -> list[FoundRun]:
    """The runs in these folders, each once; they must be of one task and, unless other `data` is given, of the same data."""
    # . and .. have no name that a row, or a folder of evidence, could have
    places = {path.resolve(): path.resolve() if path.name in ("", "..") else path for path in paths}
    found = [FoundRun(path, open_run_dir(path).read_resolved()) for path in places.values()]
    for other in found[1:]:
        _refuse_others(found[0], other, data=data)
    return found


def _refuse_others(first: FoundRun, other: FoundRun, *, data: bool) -> None:
    tasks = first.config.get("task"), other.config.get("task")
    if tasks[0] != tasks[1]:
        raise UsageError(
            "compare",
            f"{first.path} is a run of task {tasks[0]!r}, {other.path} of task {tasks[1]!r}",
            "compare runs of one task",
        )
    if not data and (apart := describe_differences(_data(first), _data(other), "data")):
        raise UsageError(
            "compare",
            f"{first.path} and {other.path} have other data ({'; '.join(apart[:3])})",
            "what they score does not compare, unless all are measured on --data FILE",
        )
    reads = first.config["data"].get("read"), other.config["data"].get("read")
    if reads[0] != reads[1]:  # blocks of running text beside lines
        raise UsageError(
            "compare",
            f"{first.path} has data.read_as = {reads[0]!r}, {other.path} {reads[1]!r}: a text becomes other items, and what is measured on them does not compare",
            "train one that reads as the other does",
        )


def _data(run: FoundRun) -> dict[str, Any]:
    return {name: value for name, value in run.config["data"].items() if name not in READING and value is not False}


def group_runs(runs: Sequence[FoundRun]) -> dict[str, list[FoundRun]]:
    """Rows by name, in the order of their first runs; the seeds of each in order."""
    groups: list[list[FoundRun]] = []
    for run in runs:
        same = [group for group in groups if _without_seed(group[0]) == _without_seed(run)]
        if same and run.seed not in [other.seed for other in same[0]]:
            same[0].append(run)
        else:
            groups.append([run])
    names = _names([group[0] for group in groups])
    return {name: sorted(group, key=lambda run: run.seed) for name, group in zip(names, groups, strict=True)}


def _without_seed(run: FoundRun) -> dict[str, Any]:
    return {name: value for name, value in run.config.items() if name != "seed"}


def _told_apart(run: FoundRun) -> dict[str, Any]:
    """The options of a run that a name may show."""
    tables: Mapping[str, Any] = {name: run.config.get(name, {}) for name in ("model", "train", "tokenizer", "data")}
    return leaves(tables)


def _names(runs: Sequence[FoundRun]) -> list[str]:
    """The kind; where several rows have it, what differs among them; where that is long or nothing, the folder."""
    names = []
    for run in runs:
        alike = [_told_apart(other) for other in runs if other.arch == run.arch]
        own = _told_apart(run)
        differing = [option for option in own if any(other.get(option) != own[option] for other in alike)]
        name = ",".join([run.arch, *(f"{option.split('.')[-1]}={own[option]}" for option in differing)])
        names.append(name if len(name) <= SHOWN else run.path.name)
    clear = [name if names.count(name) == 1 else run.path.name for name, run in zip(names, runs, strict=True)]
    return [name if clear.count(name) == 1 else str(run.path) for name, run in zip(clear, runs, strict=True)]
