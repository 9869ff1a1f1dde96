"""Bytes of plain and packed files, in chunks; what is no text file, or swells without end, is refused."""

from __future__ import annotations

import errno
import gzip
import importlib
import io
import lzma
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from weft.errors import DataError, ResourceError, WeftError

CHUNK = 1 << 20
PACKED = (".gz", ".xz", ".zst")
# text packs 3 to 20 times; only what was made to swell passes this
MAX_RATIO = 200
MIN_RATIO_BYTES = 64 << 20
READ_SIZE = 2048  # bytes of zstd data taken at once: what was made to swell becomes 64 MB of them, and no more

# fmt: off
_ZIP, _PARQUET, _EXCEL = b"PK\x03\x04", b"PAR1", "an Excel workbook; save its texts as lines first"
_MAGIC = {
    b"\x1f\x8b": "gzip data; name it .gz", b"\xfd7zXZ\x00": "xz data; name it .xz",
    b"\x28\xb5\x2f\xfd": "zstd data; name it .zst", _ZIP: "a zip archive; unpack it first",
    b"BZh": "bzip2 data; unpack it first", b"%PDF-": "a PDF document; extract its text first",
    _PARQUET: "a Parquet file; name it .parquet", b"ARROW1": "an Arrow file; export it as CSV or JSONL first",
    b"SQLite format 3\x00": "an SQLite database; export a table as CSV first",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Excel or Word file; save it as CSV UTF-8 or text first",
}
_ZIPPED = {  # what is a zip archive by its name, too
    ".xlsx": _EXCEL, ".xlsm": _EXCEL, ".ods": "an OpenDocument spreadsheet; save it as CSV first",
    ".docx": "a Word document; save it as text first", ".odt": "an OpenDocument text; save it as text first",
}
# fmt: on


def unreadable(path: Path, error: OSError) -> WeftError:
    """Why a file can't be read: the fault is the file's, or of a machine that has no descriptor or memory left."""
    spent = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return (ResourceError if spent else DataError)(path, f"cannot be read: {error.strerror}")


class _Zstd:
    """Frames one after another. (The library's own reader takes the end of a file that was cut for the end of its text.)"""

    def __init__(self, raw: BinaryIO, zstandard: Any) -> None:
        self.raw, self.begin = raw, zstandard.ZstdDecompressor().decompressobj
        self.frame, self.packed, self.inside = self.begin(), b"", False

    def read(self, size: int) -> bytes:
        """`size` bytes or some more; fewer at the end."""
        parts, found = list[bytes](), 0
        while found < size and (packed := self.packed or self.raw.read(READ_SIZE)):
            parts.append(self.frame.decompress(packed))
            found += len(parts[-1])
            self.packed, self.inside = self.frame.unused_data, not self.frame.eof
            self.frame = self.frame if self.inside else self.begin()
        if self.inside and found < size:
            raise EOFError("compressed file ended in the middle of a frame")
        return b"".join(parts)


def _zstd(raw: BinaryIO, path: Path) -> Any:
    try:
        return _Zstd(raw, importlib.import_module("zstandard"))
    except ImportError:
        raise DataError(path, ".zst needs zstandard", 'pip install "weft[data]"') from None


def _unpacked(raw: BinaryIO, path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if path.suffix == ".xz":
        return lzma.LZMAFile(raw)
    return _zstd(raw, path) if path.suffix == ".zst" else raw


def is_pattern(path: Path) -> bool:
    """Whether a path may stand for several files: texts/*.txt."""
    return any(mark in str(path) for mark in "*?[")


def check_kind(path: Path) -> None:
    """Refuse what is no file of text, before it is opened: to open a pipe is to wait for whoever writes to it."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a NUL in its name
        raise DataError(path, f"{'no file matches this pattern' if is_pattern(path) else 'no such file'}") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if stat.S_ISDIR(mode):
        raise DataError(path, "is a folder", "give the files in it")
    if not stat.S_ISREG(mode):
        raise DataError(path, "is not an ordinary file", "text is read more than once, so write it to one first")


def read_bytes(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked, in chunks of at most CHUNK."""
    check_kind(path)
    try:
        with path.open("rb") as raw:
            yield from _chunks(raw, path)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise _damaged(path, str(error)) from None
        raise unreadable(path, error) from None
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise _damaged(path, str(error)) from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise _damaged(path, str(error)) from None


def is_bomb(total: int, packed: int) -> bool:
    """Whether so many bytes were made of so few that they are no text."""
    return total > MIN_RATIO_BYTES and total > MAX_RATIO * packed


class DecompressionBomb(OSError):
    """What was packed is no text: it becomes too much."""


class _Gzip(io.RawIOBase):
    """A gzip file that stops when it swells."""

    def __init__(self, path: Path) -> None:
        self.raw = path.open("rb")
        self.stream, self.total = gzip.GzipFile(fileobj=self.raw), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self.stream.readinto(buffer)
        self.total += found
        if is_bomb(self.total, self.raw.tell()):
            raise DecompressionBomb
        return found

    def close(self) -> None:
        self.raw.close()
        super().close()


def open_gzip(path: Path) -> io.BufferedReader:
    """A gzip file to be read line by line; raises Swollen where it was made to take all the memory."""
    return io.BufferedReader(_Gzip(path), CHUNK)


def _damaged(path: Path, what: str) -> DataError:
    return DataError(path, f"is damaged or not {path.suffix} data: {what[:1].lower()}{what[1:]}")


def _no_text(chunk: bytes, path: Path) -> str | None:
    """What other program's file begins so, if one does."""
    if chunk.startswith(_ZIP):
        plain = "an Excel workbook; name it .xlsx" if b"xl/workbook.xml" in chunk else _MAGIC[_ZIP]
        return _ZIPPED.get(path.suffix.lower(), plain)
    if chunk.startswith(_PARQUET) and path.suffix.lower() == ".parquet":
        return "a Parquet file; export its texts as lines first"
    return next((what for magic, what in _MAGIC.items() if chunk.startswith(magic)), None)


def _chunks(raw: BinaryIO, path: Path) -> Iterator[bytes]:
    stream, total = _unpacked(raw, path), 0
    while chunk := stream.read(CHUNK):
        if total == 0 and stream is raw and (kind := _no_text(chunk, path)):
            raise DataError(path, f"is {kind}")
        total += len(chunk)
        if stream is not raw and is_bomb(total, raw.tell()):
            raise DataError(path, f"unpacks to more than {MAX_RATIO} times its size", "if it is meant to, unpack it yourself")
        yield chunk
