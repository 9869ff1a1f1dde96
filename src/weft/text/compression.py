"""Read the bytes of plain and compressed files in chunks. Other file types and decompression bombs are errors."""

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
COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst")
# text compresses 3 to 20 times; only decompression bombs exceed this
MAX_RATIO = 200
MIN_RATIO_BYTES = 64 << 20
READ_SIZE = 2048  # bytes of zstd data decompressed at once: a bomb becomes at most 64 MB

# fmt: off
_ZIP, _PARQUET, _EXCEL = b"PK\x03\x04", b"PAR1", "an Excel workbook; save its texts as lines first"
_MAGIC = {
    b"\x1f\x8b": "gzip data; name it .gz", b"\xfd7zXZ\x00": "xz data; name it .xz",
    b"\x28\xb5\x2f\xfd": "zstd data; name it .zst", _ZIP: "a zip archive; decompress it first",
    b"BZh": "bzip2 data; decompress it first", b"%PDF-": "a PDF document; extract its text first",
    _PARQUET: "a Parquet file; name it .parquet", b"ARROW1": "an Arrow file; export it as CSV or JSONL first",
    b"SQLite format 3\x00": "an SQLite database; export a table as CSV first",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Excel or Word file; save it as CSV UTF-8 or text first",
}
_ZIPPED = {  # file types that are zip archives
    ".xlsx": _EXCEL, ".xlsm": _EXCEL, ".ods": "an OpenDocument spreadsheet; save it as CSV first",
    ".docx": "a Word document; save it as text first", ".odt": "an OpenDocument text; save it as text first",
}
# fmt: on


def read_error(path: Path, error: OSError) -> WeftError:
    """The error for a file that cannot be read: a data error, or a resource error without descriptors or memory."""
    exhausted = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return (ResourceError if exhausted else DataError)(path, f"cannot read the file: {error.strerror}")


class _Zstd:
    """Decompress consecutive frames. (The reader of the library takes the end of a truncated file for the end of the text.)"""

    def __init__(self, raw: BinaryIO, zstandard: Any) -> None:
        self.raw, self.begin = raw, zstandard.ZstdDecompressor().decompressobj
        self.frame, self.packed, self.inside = self.begin(), b"", False

    def read(self, size: int) -> bytes:
        """At least `size` bytes; fewer at the end."""
        parts, num_read = list[bytes](), 0
        while num_read < size and (packed := self.packed or self.raw.read(READ_SIZE)):
            parts.append(self.frame.decompress(packed))
            num_read += len(parts[-1])
            self.packed, self.inside = self.frame.unused_data, not self.frame.eof
            self.frame = self.frame if self.inside else self.begin()
        if self.inside and num_read < size:
            raise EOFError("compressed file ended in the middle of a frame")
        return b"".join(parts)


def _zstd(raw: BinaryIO, path: Path) -> Any:
    try:
        return _Zstd(raw, importlib.import_module("zstandard"))
    except ImportError:
        raise DataError(path, ".zst needs zstandard", 'pip install "weft[data]"') from None


def _decompressor(raw: BinaryIO, path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if path.suffix == ".xz":
        return lzma.LZMAFile(raw)
    return _zstd(raw, path) if path.suffix == ".zst" else raw


def is_pattern(path: Path) -> bool:
    """Whether a path is a glob pattern such as texts/*.txt."""
    return any(mark in str(path) for mark in "*?[")


def check_regular_file(path: Path) -> None:
    """Reject everything but regular files before opening it: opening a pipe would wait for its writer."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise DataError(path, "no file matches this pattern" if is_pattern(path) else "file not found") from None
    except OSError as error:
        raise read_error(path, error) from None
    if stat.S_ISDIR(mode):
        raise DataError(path, "is a directory", "name the files in it")
    if not stat.S_ISREG(mode):
        raise DataError(path, "not a regular file", "text is read more than once, so save it to a file first")


def read_bytes(path: Path) -> Iterator[bytes]:
    """The decompressed bytes of a file, in chunks of at most CHUNK."""
    check_regular_file(path)
    try:
        with path.open("rb") as raw:
            yield from _chunks(raw, path)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise _corrupted(path, str(error)) from None
        raise read_error(path, error) from None
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise _corrupted(path, str(error)) from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise _corrupted(path, str(error)) from None


def is_bomb(total: int, packed: int) -> bool:
    """Whether `total` bytes decompressed from `packed` bytes cannot be text."""
    return total > MIN_RATIO_BYTES and total > MAX_RATIO * packed


class DecompressionBomb(OSError):
    """Compressed data that expands too much to be text."""


class _Gzip(io.RawIOBase):
    """A gzip stream that stops at a decompression bomb."""

    def __init__(self, path: Path) -> None:
        self.raw = path.open("rb")
        self.stream, self.total = gzip.GzipFile(fileobj=self.raw), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        num_read = self.stream.readinto(buffer)
        self.total += num_read
        if is_bomb(self.total, self.raw.tell()):
            raise DecompressionBomb
        return num_read

    def close(self) -> None:
        self.raw.close()
        super().close()


def open_gzip(path: Path) -> io.BufferedReader:
    """Open a gzip file for reading line by line; reading raises DecompressionBomb if it expands too much."""
    return io.BufferedReader(_Gzip(path), CHUNK)


def _corrupted(path: Path, reason: str) -> DataError:
    return DataError(path, f"corrupted or not {path.suffix} data: {reason[:1].lower()}{reason[1:]}")


def _other_format(chunk: bytes, path: Path) -> str | None:
    """The file format that begins like this chunk, if it is not text."""
    if chunk.startswith(_ZIP):
        plain = "an Excel workbook; name it .xlsx" if b"xl/workbook.xml" in chunk else _MAGIC[_ZIP]
        return _ZIPPED.get(path.suffix.lower(), plain)
    if chunk.startswith(_PARQUET) and path.suffix.lower() == ".parquet":
        return "a Parquet file; export its texts as lines first"
    return next((name for magic, name in _MAGIC.items() if chunk.startswith(magic)), None)


def _chunks(raw: BinaryIO, path: Path) -> Iterator[bytes]:
    stream, total = _decompressor(raw, path), 0
    while chunk := stream.read(CHUNK):
        if total == 0 and stream is raw and (other := _other_format(chunk, path)):
            name, _, fix = other.partition("; ")
            raise DataError(path, f"is {name}", fix)
        total += len(chunk)
        if stream is not raw and is_bomb(total, raw.tell()):
            raise DataError(
                path, f"decompresses to more than {MAX_RATIO} times its size", "if this is right, decompress it first"
            )
        yield chunk
