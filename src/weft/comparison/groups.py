"""Existing runs as rows of a comparison: runs that differ only in their seed are one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.comparison.applicable_options import flatten_options
from weft.comparison.plan import FailedRun
from weft.config import describe_differences
from weft.errors import ModelError, UsageError
from weft.runs.resolve import read_config
from weft.runs.run_dir import open_run_dir

READ_OPTIONS = ("context_length", "stride", "max_length", "truncate")  # may differ between runs on the same data
MAX_NAME_CHARS = 48  # of a row; a longer name is replaced by that of the directory
COMPARISON_FILES = ("comparison.json", "plan.toml")  # exist only in the directory of a comparison


class ExistingRun(NamedTuple):
    """A trained run to compare."""

    path: Path
    config: dict[str, Any]  # resolved.toml

    @property
    def arch(self) -> str:
        return str(self.config["model"]["arch"])

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))


def is_comparison(path: Path) -> bool:
    """Whether a directory contains a comparison; `weft compare runs/*` skips it."""
    return any((path / name).is_file() for name in COMPARISON_FILES)


def split_readable(paths: Sequence[Path]) -> tuple[list[Path], list[FailedRun]]:
    """Split runs into those whose configuration can be read, and failures; raises an error for a path that is not a run."""
    intact, damaged = list[Path](), list[FailedRun]()
    for path in paths:
        directory = open_run_dir(path)
        try:
            read_config(directory)
            intact.append(path)
        except ModelError as error:
            damaged.append(FailedRun(path.resolve().name, None, str(error), error.exit_code))
    if damaged and not intact:
        raise ModelError("", damaged[0].reason)
    return intact, damaged


def open_runs(paths: Sequence[Path], *, data: bool = False) -> list[ExistingRun]:
    """Open the runs, each once; they must have the same task and, unless `data` replaces it, the same data."""
    # . and .. are resolved: a row, or its directory of results, needs a name
    unique = {path.resolve(): path.resolve() if path.name in ("", "..") else path for path in paths}
    runs = [ExistingRun(path, open_run_dir(path).read_resolved()) for path in unique.values()]
    for other in runs[1:]:
        _check_comparable(runs[0], other, data=data)
    return runs


def _check_comparable(first: ExistingRun, other: ExistingRun, *, data: bool) -> None:
    tasks = first.config.get("task"), other.config.get("task")
    if tasks[0] != tasks[1]:
        raise UsageError(
            "compare",
            f"{first.path} ({tasks[0]}) and {other.path} ({tasks[1]}) have different tasks",
        )
    if not data and (differences := describe_differences(_data(first), _data(other), "data", " and ")):
        raise UsageError(
            "compare",
            f"{first.path} and {other.path} have different data ({'; '.join(differences[:3])})",
            "set `data` to evaluate all of them on the same file",
        )
    read_as = first.config["data"].get("read_as"), other.config["data"].get("read_as")
    if read_as[0] != read_as[1]:  # blocks of running text and lines are different items
        raise UsageError(
            "compare",
            f"{first.path} and {other.path} have different data.read_as ({read_as[0]}, {read_as[1]}): not comparable",
            "train them with the same data.read_as",
        )


def _data(run: ExistingRun) -> dict[str, Any]:
    return {name: value for name, value in run.config["data"].items() if name not in READ_OPTIONS and value is not False}


def group_runs(runs: Sequence[ExistingRun]) -> dict[str, list[ExistingRun]]:
    """Rows by name, in the order of their first runs, each sorted by seed."""
    groups: list[list[ExistingRun]] = []
    for run in runs:
        same = [group for group in groups if _without_seed(group[0]) == _without_seed(run)]
        if same and run.seed not in [other.seed for other in same[0]]:
            same[0].append(run)
        else:
            groups.append([run])
    names = _row_names([group[0] for group in groups])
    return {name: sorted(group, key=lambda run: run.seed) for name, group in zip(names, groups, strict=True)}


def _without_seed(run: ExistingRun) -> dict[str, Any]:
    return {name: value for name, value in run.config.items() if name != "seed"}


def _options(run: ExistingRun) -> dict[str, Any]:
    """The options of a run that may be part of its name."""
    tables: Mapping[str, Any] = {name: run.config.get(name, {}) for name in ("model", "train", "tokenizer", "data")}
    return flatten_options(tables)


def _row_names(runs: Sequence[ExistingRun]) -> list[str]:
    """Row names: the architecture, plus the options that differ between rows of the same architecture; the name of the run
    directory if that is too long or not unique."""
    names = []
    for run in runs:
        same_arch = [_options(other) for other in runs if other.arch == run.arch]
        options = _options(run)
        differing = [option for option in options if any(other.get(option) != options[option] for other in same_arch)]
        name = ",".join([run.arch, *(f"{option.split('.')[-1]}={options[option]}" for option in differing)])
        names.append(name if len(name) <= MAX_NAME_CHARS else run.path.name)
    unique = [name if names.count(name) == 1 else run.path.name for name, run in zip(names, runs, strict=True)]
    return [name if unique.count(name) == 1 else str(run.path) for name, run in zip(unique, runs, strict=True)]
