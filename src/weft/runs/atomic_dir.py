"""A folder that is made in one step: it is filled beside its place, and takes it when it is complete.

A process that is killed leaves only a hidden folder, which the next one that makes the same folder removes.
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


def _beside(final: Path) -> bool:
    """Whether a folder can be made beside `final` and renamed to it: not if it is a mounted volume, or its parent read-only."""
    return os.access(final.parent, os.W_OK) and not os.path.ismount(final)


def _held(directory: Path) -> int | None:
    """A descriptor that holds a folder until it is closed; None where another process holds it, or nobody can."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # some network file systems can't lock a folder
        os.close(descriptor)
        return None
    return descriptor


def _sweep(final: Path) -> None:
    """Remove what killed processes left of `final`."""
    for place in (final.parent, final):
        for path in place.glob(f".{_escaped(final.name[:32])}.tmp-*"):
            if (descriptor := _held(path)) is not None:
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
    """Gives a folder to fill; when the block ends well it is `out`, else nothing is left of it. `out` is an empty folder, or
    not there; `last` is the file that makes it what it is."""
    final = Path(os.path.realpath(out))
    final.parent.mkdir(parents=True, exist_ok=True)
    _sweep(final)
    beside = _beside(final)
    temp = files.temporary(final if beside else final / final.name)
    try:
        os.mkdir(temp)
    except OSError as error:
        raise ResourceError(out, f"can't be written: {error.strerror}", "nothing was changed") from None
    descriptor = _held(temp)
    try:
        yield temp
        with suppress(FileNotFoundError):  # of the run folder that was filled; it is nobody's now
            (temp / ".lock").unlink()
        if beside:
            files.publish(temp, final)
        else:
            _move_up(temp, final, last)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)
