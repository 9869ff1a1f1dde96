"""Atomic writes and verification: a reader never sees a partial file, and a corrupted file is never used.

Files and directories are written under a temporary name in the same directory, flushed to disk and renamed. The manifest of a
directory is written last. All system calls of a write go through this module's `os`, so that a test can make each of them fail.
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
MAX_JSON_BYTES = 256 << 20  # parsed JSON takes several times as much memory
_TEMPORARY_NAME = re.compile(r"\..*\.tmp-\d+-[0-9a-f]{12}")


def temporary_path(path: Path) -> Path:
    """A new temporary path in the directory of `path`; `temporary_files` recognizes its name."""
    # truncated, because file names are limited to 255 bytes
    return path.with_name(f".{path.name[:32]}.tmp-{os.getpid()}-{os.urandom(6).hex()}")


def temporary_files(directory: Path) -> list[Path]:
    """Temporary files in a directory, left by killed processes or still being written."""
    return [path for path in directory.iterdir() if _TEMPORARY_NAME.fullmatch(path.name)]


def remove_temporary_files(directory: Path) -> list[Path]:
    """Remove the temporary files of killed processes and return their paths. The caller must hold the lock of the directory."""
    paths = temporary_files(directory)
    for path in paths:
        _discard(path)
    return paths


def _remove_stale(path: Path) -> None:
    """Remove temporary files of `path` whose processes have ended."""
    with suppress(OSError):
        for temp in temporary_files(path.parent):
            if temp.name.startswith(f".{path.name[:32]}.tmp-") and not _has_live_owner(temp):
                _discard(temp)


def _has_live_owner(temp: Path) -> bool:
    """Whether the process that created a temporary file is running."""
    try:
        os.kill(int(temp.name.rpartition(".tmp-")[2].partition("-")[0]), 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def wrap_os_errors(path: Path, state: str = "nothing was changed") -> Iterator[None]:
    """Convert OSError to a one-line ResourceError; `state` describes the state that `path` is left in."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ResourceError(path, f"no space left on disk; {state}", "free some space and try again") from None
        if error.errno == errno.EDQUOT:
            raise ResourceError(path, f"disk quota exceeded; {state}", "free some space and try again") from None
        raise ResourceError(path, f"cannot write: {error.strerror}; {state}") from None


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    remaining = memoryview(data).cast("B")
    while remaining:
        # the kernel writes at most 2 GiB per call, and less if the disk is nearly full
        remaining = remaining[os.write(descriptor, remaining) :]


def sync_directory(directory: Path) -> None:
    """Flush a directory to disk, so that created and renamed entries survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems do not support this for directories
            raise
    finally:
        os.close(descriptor)


def refuse_link(path: Path) -> None:
    """Refuse a link, a pipe or a device inside a weft directory: following it would change files outside the directory. Paths
    that the user passes are not restricted."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # missing or not accessible: using it raises an error later
        return
    if stat.S_ISLNK(mode):
        raise ModelError(path, "symbolic links are not followed inside a weft directory", "remove it")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ModelError(path, "not a regular file")


def make_subdirectory(path: Path) -> None:
    """Create a directory inside a weft directory, unless it exists."""
    refuse_link(path)
    if not path.is_dir():
        with wrap_os_errors(path):
            os.mkdir(path)
            sync_directory(path.parent)


def make_directories(path: Path) -> None:
    """Create a directory and its parents, and flush them to disk."""
    created = [directory for directory in (path, *path.parents) if not os.path.exists(directory)]
    path.mkdir(parents=True, exist_ok=True)
    for directory in created:
        sync_directory(directory.parent)


def open_for_update(path: Path, flags: int = 0) -> int:
    """Open a weft file that is changed in place, and create it if it does not exist. Links are refused."""
    try:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        refuse_link(path)
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    refuse_link(path)
    raise ModelError(path, "is a hard link; writing to it would change another file", "remove it")


def _is_special(path: Path) -> bool:
    """Whether a path must not be replaced by a regular file: a device, a pipe, or an open file in /dev or /proc."""
    parent = Path(os.path.realpath(path.parent))
    is_system = parent == Path("/dev") or parent.is_relative_to("/proc")  # /dev/shm is an ordinary directory
    return is_system or (path.exists() and not (path.is_file() or path.is_dir()))


@contextmanager
def _open_special(path: Path) -> Iterator[Callable[[bytes | memoryview], None]]:
    """Yield `write(data)`, which writes to an existing pipe or device."""
    wrap_errors = partial(wrap_os_errors, path, "the data before that was written")
    with wrap_errors():
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(data: bytes | memoryview) -> None:
        with wrap_errors():
            write_all(descriptor, data)

    try:
        yield write
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: Path, *, user_path: bool = False) -> Iterator[Callable[[bytes | memoryview], None]]:
    """Yield `write(data)`. If the block succeeds, `path` has the written data, otherwise its old content.

    `user_path`: the user passed the path, so pipes and devices are written to. Otherwise they are refused.
    """
    if user_path and _is_special(path):
        with _open_special(path) as write_into:
            yield write_into
        return
    if user_path:
        _remove_stale(path)
    elif not os.path.isfile(path):
        refuse_link(path)
    temp = temporary_path(path)

    def write(data: bytes | memoryview) -> None:
        with wrap_os_errors(path):
            write_all(descriptor, data)

    with wrap_os_errors(path):
        # 0o666: the umask applies, as for any other file
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
    with wrap_os_errors(path, "it is complete, but a power failure could undo it"):
        sync_directory(path.parent)


def write_bytes(path: Path, data: bytes, *, user_path: bool = False) -> None:
    with atomic_write(path, user_path=user_path) as write:
        write(data)


def write_text(path: Path, text: str, *, user_path: bool = False) -> None:
    write_bytes(path, text.encode(), user_path=user_path)


def write_json(path: Path, value: Any, *, user_path: bool = False) -> None:
    write_bytes(path, dump_json(value, indent=2), user_path=user_path)


def as_json(value: Any) -> Any:
    """The value that `read_json` returns after `write_json(value)`."""
    return json.loads(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot represent, with None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def dump_json(value: Any, indent: int | None = None) -> bytes:
    """JSON and a newline. Lone surrogates, such as in file names that are not UTF-8, are escaped."""
    text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def refuse_device(path: Path) -> None:
    """Refuse a pipe or a device: opening it may block, and reading it may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ModelError(path, "not a regular file")


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The content of a JSON file written by weft. Files of more than `max_bytes` are refused before they take memory."""
    refuse_device(path)
    try:
        if path.stat().st_size > max_bytes:
            raise ModelError(path, f"file is larger than {max_bytes >> 20} MB")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(path, "file not found") from None
    except OSError as error:
        raise ResourceError(path, f"cannot read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(path, f"corrupted: invalid JSON: {error}") from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    refuse_device(path)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ResourceError(path, f"cannot read: {error.strerror}") from None


def list_files(paths: Iterable[Path]) -> list[Path]:
    """All files, with directories replaced by the files in them, in alphabetical order."""
    entries = (entry for path in paths for entry in (sorted(path.rglob("*")) if path.is_dir() else [path]))
    return [entry for entry in entries if not entry.is_dir()]


def _file_names(directory: Path) -> list[str]:
    """Relative names of the files in a directory, as in its manifest. Hidden files (.DS_Store, .nfs...) are ignored."""
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))
    return sorted(name for name in names if name != MANIFEST)


def write_manifest(directory: Path, extra: Mapping[str, Any] | None = None, known: Mapping[str, Any] | None = None) -> None:
    """Write the size and SHA-256 of every file, and the `extra` entries. Write the manifest last: a directory without one is
    incomplete. `known`: entries of files that were hashed while they were written."""
    paths = {name: directory / name for name in _file_names(directory)}
    files = {
        name: (known or {}).get(name) or {"size": path.stat().st_size, "sha256": sha256(path)} for name, path in paths.items()
    }
    write_json(directory / MANIFEST, {"version": 1, **(extra or {}), "files": files})


def verify(directory: Path, *, rank: int = 0, size: int = 1) -> None:
    """Refuse a directory that does not match its manifest; the error names the first file that differs. If `size` processes
    verify it together, each of them hashes some of the files."""
    manifest = directory / MANIFEST
    if not manifest.exists():
        raise ModelError(directory, f"incomplete ({MANIFEST} is missing)")
    content = read_json(manifest)
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise ModelError(manifest, "corrupted: it lists no files")
    if content.get("version") != 1:
        raise ModelError(manifest, f"format version {content.get('version')!r} is not supported (expected 1)")
    entries, names = content["files"], _file_names(directory)
    for number, name in enumerate(sorted({*entries, *names})):
        path = directory / name
        if name not in entries:
            raise ModelError(path, f"unexpected file (not in {MANIFEST})")
        if name not in names:
            raise ModelError(path, f"file not found (listed in {MANIFEST})")
        if number % size == rank:
            _verify_file(path, entries[name])


def _verify_file(path: Path, entry: Any) -> None:
    size, digest = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if path.is_symlink() or not path.is_file():
        raise ModelError(path, "not a regular file")
    if path.stat().st_size != size:
        raise ModelError(path, f"{path.stat().st_size} bytes, expected {size}; the file is corrupted")
    if sha256(path) != digest:
        raise ModelError(path, "checksum mismatch; the file is corrupted")


def publish(temp: Path, final: Path) -> None:
    """Rename a finished directory atomically, on the same file system. Only an empty directory is replaced."""
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise ResourceError(final, "already exists; nothing was changed", "remove it first")
    with wrap_os_errors(final):
        sync_directory(temp)
        os.rename(temp, final)
    with wrap_os_errors(final, "it is complete, but a power failure could undo it"):
        sync_directory(final.parent)


@contextmanager
def atomic_directory(
    final: Path, extra: Mapping[str, Any] | None = None, known: Mapping[str, Any] | None = None
) -> Iterator[Path]:
    """Yield a temporary directory. If the block succeeds, it gets a manifest and replaces `final`; otherwise it is removed. The
    block may add entries of files to `known`, which are then not hashed again."""
    temp = temporary_path(final)
    with wrap_os_errors(final):
        os.mkdir(temp)
    try:
        yield temp
        write_manifest(temp, extra, known)
        remove(final)
        publish(temp, final)
    except BaseException:
        _discard(temp)  # free its space: the disk may be full
        raise


def blocking_file(directory: Path) -> Path | None:
    """The file that prevents `directory` or one of its parents from being created; None if there is none."""
    return next((path for path in (directory, *directory.parents) if os.path.lexists(path) and not os.path.isdir(path)), None)


def remove(path: Path) -> None:
    """Remove a file or directory. If the process is killed meanwhile, it leaves a temporary file, never a partial directory."""
    if path.exists() or path.is_symlink():
        temp = temporary_path(path)
        with wrap_os_errors(path):
            os.rename(path, temp)
        _discard(temp)
