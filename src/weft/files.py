"""The one place that writes and verifies files: nothing is ever seen half-written, nothing damaged is used.

A file is written beside its place, flushed to the disk and moved over it; a folder likewise, its manifest last.
All system calls of a write go through this module's `os`, so a test can make any of them fail.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from weft.errors import ModelError, ResourceError

MANIFEST = "manifest.json"
MAX_JSON_BYTES = 256 << 20  # bytes; read, it takes several times as much memory
_LEFTOVER = re.compile(r"\..*\.tmp-\d+-[0-9a-f]{12}")


def temporary(path: Path) -> Path:
    """A fresh name beside `path` for what is not finished; `sweep` knows such names."""
    # the name is cut, or that of a very long file would pass the 255 bytes a name may have
    return path.with_name(f".{path.name[:32]}.tmp-{os.getpid()}-{os.urandom(6).hex()}")


def leftovers(directory: Path) -> list[Path]:
    """What is unfinished in `folder`: somebody is about to finish it, or was killed."""
    return [path for path in directory.iterdir() if _LEFTOVER.fullmatch(path.name)]


def sweep(directory: Path) -> list[Path]:
    """Remove what killed processes left unfinished in `folder`, and say what; call it under the folder's lock."""
    found = leftovers(directory)
    for path in found:
        _discard(path)
    return found


def _drop_leftovers(path: Path) -> None:
    """Remove what killed processes left of this file, beside which may be anybody's: only those of processes that are gone."""
    with suppress(OSError):
        for found in leftovers(path.parent):
            if found.name.startswith(f".{path.name[:32]}.tmp-"):
                _drop_if_dead(found)


def _drop_if_dead(leftover: Path) -> None:
    try:
        os.kill(int(leftover.name.rpartition(".tmp-")[2].partition("-")[0]), 0)
    except ProcessLookupError:
        _discard(leftover)
    except OSError:  # somebody else's process
        return


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def wrap_os_errors(path: Path, state: str = "nothing was changed") -> Iterator[None]:
    """Turns what the system says into one line, with the state that `path` is left in."""
    try:
        yield
    except OSError as error:
        seen = f"can't be written: {error.strerror};"
        if error.errno == errno.ENOSPC:
            seen = "no space left on the disk; free some and try again,"
        elif error.errno == errno.EDQUOT:
            seen = "the disk quota is used up; free some space and try again,"
        raise ResourceError(path, f"{seen} {state}") from None


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        # the kernel takes at most 2 GiB a call, and less on a disk that is nearly full
        rest = rest[os.write(descriptor, rest) :]


def sync_directory(directory: Path) -> None:
    """Make what was created, renamed or removed in `folder` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no such thing for folders
            raise
    finally:
        os.close(descriptor)


def refuse_link(path: Path) -> None:
    """Refuse a link, a pipe or a device inside a folder of ours: whatever is written there, moved or removed would be
    somebody else's. What a user names may be anything."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # not there, or not to be seen: whoever uses it will say so
        return
    if stat.S_ISLNK(mode):
        raise ModelError(path, "is a link, and none is followed inside a folder of weft", "remove it")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ModelError(path, "is a pipe or a device, not a file")


def own_directory(path: Path) -> None:
    """Make a folder inside one of ours, or find it."""
    refuse_link(path)
    if not path.is_dir():
        with wrap_os_errors(path):
            os.mkdir(path)
            sync_directory(path.parent)


def make_directories(path: Path) -> None:
    """Make a folder that a user names, and those that it is to be in, so that they survive a power cut."""
    made = [place for place in (path, *path.parents) if not os.path.exists(place)]
    path.mkdir(parents=True, exist_ok=True)
    for place in made:
        sync_directory(place.parent)


def open_own(path: Path, flags: int = 0) -> int:
    """A descriptor of a file of ours that is changed in place, made if it is not there; one that is also somebody else's is
    refused."""
    try:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        refuse_link(path)
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    refuse_link(path)
    raise ModelError(path, "is a hard link, so writing to it would change another file, too", "remove it")


def _is_special(path: Path) -> bool:
    """Whether no file may take a path's place: a device, a pipe, or a name that the system gives to what is open."""
    place = Path(os.path.realpath(path.parent))
    given = place == Path("/dev") or place.is_relative_to("/proc")  # /dev/shm is a folder like others
    return given or (path.exists() and not (path.is_file() or path.is_dir()))


@contextmanager
def _writing_into(path: Path) -> Iterator[Callable[[bytes | memoryview], None]]:
    """Gives `write(data)` to what is there."""
    told = partial(wrap_os_errors, path, "what came before that is written")
    with told():
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(data: bytes | memoryview) -> None:
        with told():
            write_all(descriptor, data)

    try:
        yield write
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: Path, *, named: bool = False) -> Iterator[Callable[[bytes | memoryview], None]]:
    """Gives `write(data)`; when the block ends well, `path` is what was written, else what it was before. A pipe or a device
    is written into if the user has `named` it, else refused."""
    if named and _is_special(path):
        with _writing_into(path) as into:
            yield into
        return
    if named:
        _drop_leftovers(path)
    elif not os.path.isfile(path):
        refuse_link(path)
    temp = temporary(path)

    def write(data: bytes | memoryview) -> None:
        with wrap_os_errors(path):
            write_all(descriptor, data)

    with wrap_os_errors(path):
        # 0o666: the umask decides, as for any ordinary file
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            yield write
            with wrap_os_errors(path):
                os.fsync(descriptor)
        finally:
            with wrap_os_errors(path):
                os.close(descriptor)
        with wrap_os_errors(path):
            os.replace(temp, path)
    except BaseException:
        _discard(temp)
        raise
    with wrap_os_errors(path, "it is complete, but a power cut could undo it"):
        sync_directory(path.parent)


def write_bytes(path: Path, data: bytes, *, named: bool = False) -> None:
    with atomic_write(path, named=named) as write:
        write(data)


def write_text(path: Path, text: str, *, named: bool = False) -> None:
    write_bytes(path, text.encode(), named=named)


def write_json(path: Path, value: Any, *, named: bool = False) -> None:
    write_bytes(path, dump_json(value, indent=2), named=named)


def as_json(value: Any) -> Any:
    """A value as `read_json` would give it back after `write_json`."""
    return json.loads(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def dump_json(value: Any, indent: int | None = None) -> bytes:
    """JSON and a line end; half a surrogate pair, as in a file name that is not UTF-8, as the escape that JSON has for it."""
    text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def refuse_device(path: Path) -> None:
    """Refuse a pipe or a device: to open one is to wait, or to read without end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ModelError(path, "is a pipe or a device, not a file")


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """What a JSON file that weft wrote holds; one of more than `most` bytes is refused before it takes the memory."""
    refuse_device(path)
    try:
        if path.stat().st_size > max_bytes:
            raise ModelError(path, f"is larger than {max_bytes >> 20} MB", "no such file of a run is")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(path, "is missing") from None
    except OSError as error:
        raise ResourceError(path, f"can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(path, f"is damaged: it can't be read as JSON: {error}") from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    refuse_device(path)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ResourceError(path, f"can't be read: {error.strerror}") from None


def within(paths: Iterable[Path]) -> list[Path]:
    """The files that paths name, those of a folder in order."""
    return [inner for path in paths for inner in (sorted(path.rglob("*")) if path.is_dir() else [path]) if not inner.is_dir()]


def _contents(directory: Path) -> list[str]:
    """The files of a folder as its manifest names them; hidden ones (.DS_Store, .nfs...) are the system's."""
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    shown = (path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))
    return sorted(name for name in shown if name != MANIFEST)


def write_manifest(directory: Path, notes: Mapping[str, Any] | None = None) -> None:
    """Write down size and SHA-256 of every file, and `notes`; without it a folder counts as incomplete, so it comes last."""
    paths = {name: directory / name for name in _contents(directory)}
    files = {name: {"size": path.stat().st_size, "sha256": sha256(path)} for name, path in paths.items()}
    write_json(directory / MANIFEST, {"version": 1, **(notes or {}), "files": files})


def verify(directory: Path) -> None:
    """Refuse a folder that is not exactly what its manifest says, naming the first file that differs."""
    manifest = directory / MANIFEST
    if not manifest.exists():
        raise ModelError(directory, f"has no {MANIFEST}", "it is incomplete")
    noted = read_json(manifest)
    if not isinstance(noted, dict) or not isinstance(noted.get("files"), dict):
        raise ModelError(manifest, "is damaged: it lists no files")
    if noted.get("version") != 1:
        raise ModelError(manifest, f"is of version {noted.get('version')!r}", "this weft reads version 1")
    found = _contents(directory)
    for name in sorted({*noted["files"], *found}):
        path = directory / name
        if name not in noted["files"]:
            raise ModelError(path, f"is not in {MANIFEST}", "it does not belong here")
        if name not in found:
            raise ModelError(path, f"is missing, but {MANIFEST} lists it")
        _verify_file(path, noted["files"][name])


def _verify_file(path: Path, entry: Any) -> None:
    size, digest = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if path.is_symlink() or not path.is_file():
        raise ModelError(path, "is not an ordinary file", "a link or device is never followed")
    if path.stat().st_size != size:
        raise ModelError(path, f"has {path.stat().st_size} bytes, {MANIFEST} says {size}", "the file is damaged")
    if sha256(path) != digest:
        raise ModelError(path, f"its SHA-256 differs from {MANIFEST}", "the file is damaged")


def publish(temp: Path, final: Path) -> None:
    """Move a finished folder to its place in one step; both lie on one file system. What is there is never replaced, but an
    empty folder."""
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise ResourceError(final, "is already there", "remove it first, nothing was changed")
    with wrap_os_errors(final):
        sync_directory(temp)
        os.rename(temp, final)
    with wrap_os_errors(final, "it is complete, but a power cut could undo it"):
        sync_directory(final.parent)


@contextmanager
def atomic_directory(final: Path, notes: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Gives a folder to fill; when the block ends well it is `final`, with its manifest, else nothing is left of it."""
    temp = temporary(final)
    with wrap_os_errors(final):
        os.mkdir(temp)
    try:
        yield temp
        write_manifest(temp, notes)
        remove(final)
        publish(temp, final)
    except BaseException:
        _discard(temp)  # a disk that is full needs the space
        raise


def blocking_file(directory: Path) -> Path | None:
    """What is no folder and has the name of this one, or of one that it is to be in."""
    return next(
        (place for place in (directory, *directory.parents) if os.path.lexists(place) and not os.path.isdir(place)), None
    )


def remove(path: Path) -> None:
    """Remove a file or folder; a process killed half-way leaves a leftover for `sweep`, never half a folder."""
    if path.exists() or path.is_symlink():
        temp = temporary(path)
        with wrap_os_errors(path):
            os.rename(path, temp)
        _discard(temp)
