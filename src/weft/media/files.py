"""Sounds, images and video as files: on disk, as members of a zip archive, or as a part of a longer recording."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

from weft.errors import DataError

T = TypeVar("T")
CHUNK_BYTES = 1 << 20
MAX_MEMBER_BYTES = 1 << 31  # of a member of an archive, decompressed
DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)
MAX_RATIO = 200  # decompressed bytes per byte of an archive; sounds and images hardly compress


class MediaFile(NamedTuple):
    """A file, a member of a zip archive, or some seconds of a recording."""

    path: Path
    member: str = ""  # if `path` is a zip archive
    start: float = 0.0  # seconds
    duration: float | None = None  # seconds; None: to the end

    def __str__(self) -> str:
        return f"{self.path}/{self.member}" if self.member else str(self.path)

    @property
    def suffix(self) -> str:
        """The file type by its name, in lower case: ".wav"."""
        return (Path(self.member) if self.member else self.path).suffix.lower()

    def size(self) -> int:
        """Bytes of the file or, decompressed, of the member. Refuses what cannot be read."""
        if self.member:
            return _member(self).file_size
        status = _or_data_error(self, self.path.stat)
        if not stat.S_ISREG(status.st_mode):
            raise DataError(str(self), "not a file")
        if not status.st_size:
            raise DataError(str(self), "empty file")
        return status.st_size

    def read(self, max_bytes: int | None = None) -> bytes:
        """The bytes of the file, or the first `max_bytes`. Refuses what cannot be read."""
        size = self.size()
        if max_bytes is None and size > MAX_MEMBER_BYTES:
            raise DataError(str(self), f"{size:,} bytes are more than the limit of {MAX_MEMBER_BYTES:,}")
        if not self.member:
            with _or_data_error(self, lambda: self.path.open("rb")) as file:
                return _or_data_error(self, lambda: file.read(-1 if max_bytes is None else max_bytes))
        archive, info = _archive(self.path), _member(self)
        with _or_data_error(self, lambda: archive.open(info)) as member:
            # zipfile decompresses no more than the header says, and then compares the checksum
            return _or_data_error(self, lambda: member.read(info.file_size if max_bytes is None else max_bytes))

    def open(self) -> io.BytesIO:
        """The whole file in memory, for libraries that seek."""
        return io.BytesIO(self.read())

    def stream(self) -> io.FileIO | io.BytesIO:
        """The file, unbuffered, for reading a part of it; a member of an archive is read into memory."""
        if self.member:
            return self.open()
        self.size()
        return _or_data_error(self, lambda: io.FileIO(self.path))

    def fingerprint(self) -> str:
        """SHA-256 of the content, and the part of it that is used; of a directory, that of its files."""
        digest = hashlib.sha256()
        if self.member:  # the checksum of an archive stands for the content
            info = _member(self)
            digest.update(f"{info.CRC}:{info.file_size}".encode())
        elif _or_data_error(self, self.path.is_dir):  # of frames
            for path in sorted(_or_data_error(self, lambda: list(self.path.iterdir()))):
                if path.is_file():
                    digest.update(f"{path.name}:{MediaFile(path).fingerprint()}|".encode())
        else:
            self.size()
            with _or_data_error(self, lambda: self.path.open("rb")) as file:
                while chunk := _or_data_error(self, lambda: file.read(CHUNK_BYTES)):
                    digest.update(chunk)
        digest.update(f"|{self.start}|{self.duration}".encode())
        return digest.hexdigest()


def _or_data_error(file: MediaFile, action: Callable[[], T]) -> T:
    """The result of an action on a file; what the system or the archive refuses is a DataError."""
    try:
        return action()
    except FileNotFoundError:
        raise DataError(str(file), "file not found") from None
    except OSError as error:  # `error` itself would repeat the path
        raise DataError(str(file), f"cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, RuntimeError, ArithmeticError, *DAMAGES) as error:
        raise DataError(str(file), f"cannot be read: {error}") from None


def _archive(path: Path) -> zipfile.ZipFile:
    """An open zip archive, kept open for its other members until the file changes."""
    file = MediaFile(path)
    file.size()  # refuses a pipe, which would block
    status = _or_data_error(file, path.stat)
    # a child process must not share the position in the file with its parent: one archive per process
    return _open_archive(path, (status.st_ino, status.st_size, status.st_mtime_ns, os.getpid()))


@lru_cache(maxsize=8)
def _open_archive(path: Path, version: tuple[int, ...]) -> zipfile.ZipFile:
    archive = _or_data_error(MediaFile(path), lambda: zipfile.ZipFile(path))
    size, claimed = version[1], sum(info.file_size for info in archive.infolist())
    if claimed > MAX_RATIO * size:
        archive.close()
        raise DataError(path, f"{size:,} bytes claim to hold {claimed:,}: refused as a decompression bomb")
    return archive


def _member(file: MediaFile) -> zipfile.ZipInfo:
    archive = _archive(file.path)
    try:
        info = archive.getinfo(file.member)
    except KeyError:
        raise DataError(str(file), "not in the archive") from None
    if info.is_dir() or not info.file_size:
        raise DataError(str(file), "empty file")
    if info.file_size > MAX_MEMBER_BYTES:
        raise DataError(str(file), f"{info.file_size:,} bytes are more than the limit of {MAX_MEMBER_BYTES:,}")
    return info


def is_archive(path: Path) -> bool:
    """Whether a path is a zip archive, by its name."""
    return path.suffix.lower() == ".zip"


def import_extra(module: str, package: str, what: str) -> ModuleType:
    """An optional package. If it is missing, the error says how to install it."""
    try:
        return import_module(module)
    except (ImportError, OSError):  # OSError: the package is there, its library is not
        raise DataError(what, f"requires the package {package}", f"run pip install {package}") from None
