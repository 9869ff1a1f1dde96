"""What all exports share: their options, and export.json, which an export writes beside its files after it has compared them
with the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from weft import __version__, files
from weft.errors import UsageError

RECORD = "export.json"


def check_output_dir(output_dir: Path) -> None:
    """Refuse a file, and a directory that is not empty."""
    if (file := files.blocking_file(output_dir)) is not None:
        raise UsageError("export", f"{file} is a file, not a directory", "choose another `output_dir`")
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UsageError("export", f"{output_dir} is not empty", "choose another `output_dir`")


class ExportOptions(NamedTuple):
    """Options of `weft export` besides run and directory."""

    quantization: str | None = None  # such as "int8"; None: float32
    license: str | None = None  # in the model card; None: unknown
    scores: Path | None = None  # scores for the model card: the output of weft evaluate --json


class ExportCheck(NamedTuple):
    """The comparison of exported files with the run, both computed on the same inputs."""

    max_difference: float  # the largest, of log-probabilities
    shapes: Sequence[Sequence[int]]  # (rows, tokens) of the inputs


def write_export_record(
    directory: Path, *, run: Path, name: str, check: ExportCheck | None, call: str, packages: Sequence[str]
) -> None:
    """Write export.json: what was exported, by which versions, with which difference, the checksum of every other file in
    `directory`, and the call that gives the outputs of weft. `check` is None if the other program is not installed."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != RECORD)
    record: Mapping[str, Any] = {
        "format": name,
        "run": run.resolve().name,
        "versions": {"weft": __version__, **{package: version(package) for package in packages}},
        "check": None if check is None else check._asdict(),
        "call": call,
        "files": {
            str(path.relative_to(directory)): {"size": path.stat().st_size, "sha256": files.sha256(path)} for path in paths
        },
    }
    files.write_json(directory / RECORD, record)
