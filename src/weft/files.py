"""The one place that writes and verifies files: nothing is ever seen half-written, nothing damaged is used.

A file is written beside its place, flushed to the disk and moved over it; a folder likewise, its manifest last.
All system calls of a write go through this module's `os`, so a test can make any of them fail.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from weft.errors import InUseError, ModelError, ResourceError

MANIFEST = "manifest.json"
_LEFTOVER = re.compile(r"\..*\.tmp-\d+-[0-9a-f]{12}")


def temporary(path: Path) -> Path:
    """A fresh name beside `path` for what is not finished; `sweep` knows such names."""
    # the name is cut, or that of a very long file would pass the 255 bytes a name may have
    return path.with_name(f".{path.name[:32]}.tmp-{os.getpid()}-{os.urandom(6).hex()}")


def sweep(folder: Path) -> list[Path]:
    """Remove what killed processes left unfinished in `folder`, and say what; call it under the folder's lock."""
    found = [path for path in folder.iterdir() if _LEFTOVER.fullmatch(path.name)]
    for path in found:
        _discard(path)
    return found


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def _refusing(path: Path, state: str = "nothing was changed") -> Iterator[None]:
    """Turns what the system says into one line, with the state that `path` is left in."""
    try:
        yield
    except OSError as error:
        seen = f"can't be written: {error.strerror};"
        if error.errno == errno.ENOSPC:
            seen = "no space left on the disk; free some and try again,"
        elif error.errno == errno.EDQUOT:
            seen = "the disk quota is used up; free some space and try again,"
        raise ResourceError(f"{path}: {seen} {state}") from None


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        # the kernel takes at most 2 GiB a call, and less on a disk that is nearly full
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no such thing for folders
            raise
    finally:
        os.close(descriptor)


def _is_special(path: Path) -> bool:
    """Whether no file may take a path's place: a device, a pipe, or a name that the system gives to what is open."""
    place = Path(os.path.realpath(path.parent))
    given = place == Path("/dev") or place.is_relative_to("/proc")  # /dev/shm is a folder like others
    return given or (path.exists() and not (path.is_file() or path.is_dir()))


@contextmanager
def _writing_into(path: Path) -> Iterator[Callable[[bytes | memoryview], None]]:
    """Gives `write(data)` to what is there."""
    refusing = partial(_refusing, path, "what came before that is written")
    with refusing():
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(data: bytes | memoryview) -> None:
        with refusing():
            _write_all(descriptor, data)

    try:
        yield write
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[Callable[[bytes | memoryview], None]]:
    """Gives `write(data)`; when the block ends well, `path` is what was written, else what it was before. A pipe or a device
    is written into."""
    if _is_special(path):
        with _writing_into(path) as into:
            yield into
        return
    temp = temporary(path)

    def write(data: bytes | memoryview) -> None:
        with _refusing(path):
            _write_all(descriptor, data)

    with _refusing(path):
        # 0o666: the umask decides, as for any ordinary file
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            yield write
            with _refusing(path):
                os.fsync(descriptor)
        finally:
            with _refusing(path):
                os.close(descriptor)
        with _refusing(path):
            os.replace(temp, path)
    except BaseException:
        _discard(temp)
        raise
    with _refusing(path, "it is complete, but a power cut could undo it"):
        sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    with writing(path) as write:
        write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(_finite(value), ensure_ascii=False, indent=2, allow_nan=False) + "\n")


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


def refuse_device(path: Path) -> None:
    """Refuse a pipe or a device: to open one is to wait, or to read without end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ModelError(f"{path}: is a pipe or a device, not a file")


def read_json(path: Path) -> Any:
    """What a JSON file that weft wrote holds."""
    refuse_device(path)
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path}: is missing") from None
    except OSError as error:
        raise ResourceError(f"{path}: can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is damaged: it can't be read as JSON: {error}") from None


class Log:
    """A file of JSON lines that only grows, but for `cut` on resume; `length` is its size in bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _refusing(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self.length = os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def write(self, record: Mapping[str, Any]) -> None:
        line = (json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
        with _refusing(self.path, "the line is not in it"):
            try:
                _write_all(self._descriptor, line)
            except OSError:
                with suppress(OSError):  # a torn line would spoil the file for whoever reads it
                    os.ftruncate(self._descriptor, self.length)
                raise
        self.length += len(line)

    def cut(self, length: int) -> None:
        """Drop what was written after the first `length` bytes."""
        if not 0 <= length <= self.length:
            raise ModelError(f"{self.path}: has {self.length} bytes, but the checkpoint knows {length}; lines are missing")
        with _refusing(self.path):
            os.ftruncate(self._descriptor, length)
        self.length = length

    def sync(self) -> None:
        with _refusing(self.path, "its last lines may not survive a power cut"):
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ResourceError(f"{path}: can't be read: {error.strerror}") from None


def within(paths: Iterable[Path]) -> list[Path]:
    """The files that paths name, those of a folder in order."""
    return [inner for path in paths for inner in (sorted(path.rglob("*")) if path.is_dir() else [path]) if not inner.is_dir()]


def _contents(folder: Path) -> list[str]:
    """The files of a folder as its manifest names them; hidden ones (.DS_Store, .nfs...) are the system's."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    shown = (path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))
    return sorted(name for name in shown if name != MANIFEST)


def write_manifest(folder: Path, *, owner: str = "") -> None:
    """Write down size and SHA-256 of every file, and whose they are; without it a folder counts as incomplete, so it comes
    last."""
    paths = {name: folder / name for name in _contents(folder)}
    files = {name: {"size": path.stat().st_size, "sha256": sha256(path)} for name, path in paths.items()}
    write_json(folder / MANIFEST, {"version": 1, **({"owner": owner} if owner else {}), "files": files})


def verify(folder: Path) -> None:
    """Refuse a folder that is not exactly what its manifest says, naming the first file that differs."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        raise ModelError(f"{folder}: has no {MANIFEST}; it is incomplete")
    noted = read_json(manifest)
    if not isinstance(noted, dict) or not isinstance(noted.get("files"), dict):
        raise ModelError(f"{manifest}: is damaged: it lists no files")
    if noted.get("version") != 1:
        raise ModelError(f"{manifest}: is of version {noted.get('version')!r}; this weft reads version 1")
    found = _contents(folder)
    for name in sorted({*noted["files"], *found}):
        path = folder / name
        if name not in noted["files"]:
            raise ModelError(f"{path}: is not in {MANIFEST}; it does not belong here")
        if name not in found:
            raise ModelError(f"{path}: is missing, but {MANIFEST} lists it")
        _verify_file(path, noted["files"][name])


def _verify_file(path: Path, entry: Any) -> None:
    size, digest = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if path.is_symlink() or not path.is_file():
        raise ModelError(f"{path}: is not an ordinary file; a link or device is never followed")
    if path.stat().st_size != size:
        raise ModelError(f"{path}: has {path.stat().st_size} bytes, {MANIFEST} says {size}; the file is damaged")
    if sha256(path) != digest:
        raise ModelError(f"{path}: its SHA-256 differs from {MANIFEST}; the file is damaged")


def publish(temp: Path, final: Path) -> None:
    """Move a finished folder to its place in one step; both lie on one file system. What is there is never replaced."""
    if final.exists():
        raise ResourceError(f"{final}: is already there; remove it first, nothing was changed")
    with _refusing(final):
        sync_folder(temp)
        os.rename(temp, final)
    with _refusing(final, "it is complete, but a power cut could undo it"):
        sync_folder(final.parent)


@contextmanager
def building(final: Path, *, owner: str = "") -> Iterator[Path]:
    """Gives a folder to fill; when the block ends well it is `final`, with its manifest, else nothing is left of it."""
    temp = temporary(final)
    with _refusing(final):
        os.mkdir(temp)
    try:
        yield temp
        write_manifest(temp, owner=owner)
        remove(final)
        publish(temp, final)
    except BaseException:
        _discard(temp)  # a disk that is full needs the space
        raise


def in_the_way(folder: Path) -> Path | None:
    """What is no folder and has the name of this one, or of one that it is to be in."""
    return next((place for place in (folder, *folder.parents) if os.path.lexists(place) and not os.path.isdir(place)), None)


def remove(path: Path) -> None:
    """Remove a file or folder; a process killed half-way leaves a leftover for `sweep`, never half a folder."""
    if path.exists() or path.is_symlink():
        temp = temporary(path)
        with _refusing(path):
            os.rename(path, temp)
        _discard(temp)


class Lock:
    """Holds a folder for one process while the block runs; the kernel lets go of it when that process dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        with _refusing(self.folder):
            self._descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # the holder may be between taking the lock and signing it
            holder = os.pread(self._descriptor, 100, 0).decode(errors="replace").strip() or "another process"
            raise InUseError(f"{self.folder}: in use by {holder}") from None
        except OSError as error:
            raise ResourceError(f"{self.folder}: can't be locked: {error.strerror}") from None
        with _refusing(self.folder):
            os.ftruncate(self._descriptor, 0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.pwrite(self._descriptor, f"process {os.getpid()} (since {since})\n".encode(), 0)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # the file stays: unlinking it would let two processes hold two files of one name
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
