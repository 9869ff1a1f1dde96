"""Checks whether a run is finished, and cleans up after a run that failed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import DivergedError, LogError, ResourceError
from weft.lock import Lock

if TYPE_CHECKING:
    from weft.runs.config import RunConfig


@contextmanager
def remove_on_failure(out: Path) -> Iterator[None]:
    """If the block fails before there is anything to resume, remove the directories that it created."""
    created = [path for path in (out, *out.parents) if not os.path.exists(path)]  # Path.exists fails if the name is too long
    try:
        yield
    except DivergedError:
        raise  # keep the log, which shows the losses before the divergence
    except Exception:
        if out in created and not any(os.path.exists(out / name) for name in ("checkpoints", "model.safetensors")):
            _remove(created)
        raise


@contextmanager
def remove_empty_parents(out: Path) -> Iterator[None]:
    """If the block fails, remove the parents of `out` that it created. `out` itself stays: it is written atomically, so if it
    exists, another process has written it."""
    created = [path for path in out.parents if not os.path.exists(path)]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for path in created:
                path.rmdir()
        raise


def _remove(directories: list[Path]) -> None:
    """Remove directories, innermost first, unless another process uses them."""
    with suppress(OSError, ResourceError):
        if directories[0].exists():
            with Lock(directories[0]):
                shutil.rmtree(directories[0])
        for path in directories[1:]:
            path.rmdir()


def is_finished(out: Path, config: RunConfig) -> bool:
    """Whether `out` contains the run of `config`, trained to the end of its budget. If its log is corrupted, the run counts as
    unfinished: training restores the log."""
    from weft.runs.run_dir import RunDir
    from weft.runs.status import read_run_status

    directory = RunDir(out)
    if not os.path.isfile(directory.resolved) or directory.changes(config):
        return False
    try:
        return directory.weights.is_file() and read_run_status(out).done
    except LogError:
        return False
