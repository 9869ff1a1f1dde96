"""The exported models that the engine `ctranslate2` keeps in a run directory: ctranslate2/QUANTIZATION-KEY/.

The key is a checksum of everything that the files depend on: a model that has been trained further, or another version, has
another key, so an old export is never used. It is removed when a new one is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from weft import __version__, files
from weft.errors import ResourceError, WeftError
from weft.interop.ctranslate2_export import NAME, write_model
from weft.interop.export_record import RECORD
from weft.runs.atomic_dir import staged_directory
from weft.runs.run import AnyRun

T = TypeVar("T")


def cache_dir(run: AnyRun, quantization: str) -> Path:
    """The directory of the exported model."""
    parts = [files.sha256(run.directory.weights), files.sha256(run.directory.resolved), run.vocabulary.hash]
    key = hashlib.sha256(" ".join([*parts, __version__, version(NAME)]).encode()).hexdigest()
    return run.path / NAME / f"{quantization}-{key[:16]}"


def is_complete(directory: Path) -> bool:
    """Whether an exported model has all its files, undamaged."""
    try:
        record = files.read_json(directory / RECORD)
        return "model.bin" in record["files"] and all(
            files.sha256(directory / name) == entry["sha256"] for name, entry in record["files"].items()
        )
    except (OSError, WeftError, ValueError, KeyError, TypeError):
        return False


def _write(run: AnyRun, directory: Path, quantization: str) -> None:
    """Replace a missing or damaged model."""
    if directory.exists():
        files.remove(directory)
    with staged_directory(directory, last=RECORD) as staging_dir:
        write_model(run, staging_dir, quantization)
    for other in directory.parent.glob(f"{quantization}-*"):
        if other != directory:
            files.remove(other)


def with_model_dir(run: AnyRun, quantization: str, load: Callable[[Path], T]) -> T:
    """Call `load` with the directory of the exported model, which is written if there is none. If the run directory is
    read-only, it is a temporary directory."""
    directory = cache_dir(run, quantization)
    for path in (directory.parent, directory):
        files.refuse_link(path)
    if not is_complete(directory):
        with suppress(ResourceError, OSError):  # read-only, a full disk, or another process has just written it
            _write(run, directory, quantization)
    if is_complete(directory):
        return load(directory)
    with TemporaryDirectory() as temporary:
        write_model(run, Path(temporary), quantization)
        return load(Path(temporary))
