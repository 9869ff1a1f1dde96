"""Atomic creation of a directory: it is written under a temporary name and renamed when it is complete.

A process that is killed leaves only a hidden directory, which the next process that creates the same directory removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft import files
from weft.errors import ResourceError


def _can_rename_to(final: Path) -> bool:
    """Whether a sibling of `final` can be renamed to it: not if it is a mounted volume, its parent is read-only, or it is the
    current directory, which would be gone."""
    return os.access(final.parent, os.W_OK) and not os.path.ismount(final) and final != Path(os.path.realpath("."))


def _lock(directory: Path) -> int | None:
    """A descriptor that locks a directory until it is closed; None if another process has locked it or it cannot be locked."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # some network file systems cannot lock a directory
        os.close(descriptor)
        return None
    return descriptor


def _sweep(final: Path) -> None:
    """Remove temporary directories for `final` that killed processes left behind."""
    for directory in (final.parent, final):
        for path in directory.glob(f".{_escaped(final.name[:32])}.tmp-*"):
            if (descriptor := _lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)


def _escaped(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _move_up(temp: Path, final: Path, last: str) -> None:
    for part in sorted(temp.iterdir(), key=lambda part: (part.name == last, part)):
        os.rename(part, final / part.name)
    temp.rmdir()
    files.sync_directory(final)


@contextmanager
def staged_directory(out: Path, *, last: str) -> Iterator[Path]:
    """Yield a directory to write to. It becomes `out` if the block succeeds and is removed otherwise.

    Args:
        out: An empty directory, or a path that does not exist.
        last: The file that marks the directory as complete. It is moved last if `out` cannot be replaced by renaming.
    """
    final = Path(os.path.realpath(out))
    final.parent.mkdir(parents=True, exist_ok=True)
    _sweep(final)
    can_rename = _can_rename_to(final)
    temp = files.temporary_path(final if can_rename else final / final.name)
    try:
        os.mkdir(temp)
    except OSError as error:
        raise ResourceError(out, f"cannot write: {error.strerror}", "nothing was changed") from None
    descriptor = _lock(temp)
    try:
        yield temp
        with suppress(FileNotFoundError):  # the lock of the run directory that was written
            (temp / ".lock").unlink()
        if can_rename:
            files.publish(temp, final)
        else:
            _move_up(temp, final, last)
    except BaseException as error:
        shutil.rmtree(temp, ignore_errors=True)
        if isinstance(error, ResourceError) and error.where.startswith(str(temp)):  # nobody knows the temporary name
            raise ResourceError(out, error.problem, error.fix) from None
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)
