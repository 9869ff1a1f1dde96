"""The folder of a run that a command makes: whether it is finished, and what is left of one that failed."""

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
    """If the block fails before there is anything to resume, the folders that it made are gone again."""
    made = [path for path in (out, *out.parents) if not os.path.exists(path)]  # Path.exists fails on too long a name
    try:
        yield
    except DivergedError:
        raise  # what it logged on its way is worth a look
    except Exception:
        if out in made and not any(os.path.exists(out / name) for name in ("checkpoints", "model.safetensors")):
            _remove(made)
        raise


def _remove(made: list[Path]) -> None:
    with suppress(OSError, ResourceError):  # somebody else has begun to use it: it is theirs now
        if made[0].exists():
            with Lock(made[0]):
                shutil.rmtree(made[0])
        for path in made[1:]:
            path.rmdir()


def is_finished(out: Path, config: RunConfig) -> bool:
    """Whether `out` holds this very run, trained to its end, and knows of it; training restores a log that was damaged."""
    from weft.runs.run_dir import RunDir
    from weft.runs.status import read_run_status

    directory = RunDir(out)
    if not os.path.isfile(directory.resolved) or directory.changes(config):
        return False
    try:
        return directory.weights.is_file() and read_run_status(out).done
    except LogError:
        return False
