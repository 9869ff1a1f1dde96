"""Reads plain and compressed files in chunks. Other file types and decompression bombs are errors."""

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

CHUNK_BYTES = 1 << 20
COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst")
MAX_RATIO = 200  # of decompressed to compressed size; text has 3 to 20
MIN_RATIO_BYTES = 64 << 20  # smaller files are not checked
ZSTD_READ_BYTES = 2048  # compressed bytes per call: even a bomb decompresses to at most 64 MB

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
    """The error for a file that cannot be read: a DataError, or a ResourceError without descriptors or memory."""
    is_exhausted = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return (ResourceError if is_exhausted else DataError)(path, f"cannot read the file: {error.strerror}")


class _ZstdReader:
    """Decompresses consecutive frames. (The reader of the library does not detect that a file is truncated.)"""

    def __init__(self, raw: BinaryIO, zstandard: Any) -> None:
        self.raw, self.new_frame = raw, zstandard.ZstdDecompressor().decompressobj
        self.frame, self.unused, self.is_inside_frame = self.new_frame(), b"", False

    def read(self, size: int) -> bytes:
        """At least `size` bytes; fewer at the end of the file."""
        chunks, num_read = list[bytes](), 0
        while num_read < size and (compressed := self.unused or self.raw.read(ZSTD_READ_BYTES)):
            chunks.append(self.frame.decompress(compressed))
            num_read += len(chunks[-1])
            self.unused, self.is_inside_frame = self.frame.unused_data, not self.frame.eof
            self.frame = self.frame if self.is_inside_frame else self.new_frame()
        if self.is_inside_frame and num_read < size:
            raise EOFError("compressed file ended in the middle of a frame")
        return b"".join(chunks)


def _open_zstd(raw: BinaryIO, path: Path) -> Any:
    try:
        return _ZstdReader(raw, importlib.import_module("zstandard"))
    except ImportError:
        raise DataError(path, ".zst needs zstandard", "run pip install zstandard") from None


def _decompressor(raw: BinaryIO, path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if path.suffix == ".xz":
        return lzma.LZMAFile(raw)
    return _open_zstd(raw, path) if path.suffix == ".zst" else raw


def is_pattern(path: Path) -> bool:
    """Whether a path is a glob pattern such as texts/*.txt."""
    return any(char in str(path) for char in "*?[")


def check_regular_file(path: Path) -> None:
    """Refuse everything but regular files before opening it: opening a pipe would wait for its writer."""
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
    """Decompressed bytes of a file, in chunks of about CHUNK_BYTES."""
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


def is_bomb(decompressed: int, compressed: int) -> bool:
    """Whether a ratio of sizes, in bytes, is too large for text."""
    return decompressed > MIN_RATIO_BYTES and decompressed > MAX_RATIO * compressed


class DecompressionBomb(OSError):
    """Compressed data that expands too much to be text."""


class _GzipReader(io.RawIOBase):
    """A gzip stream that raises DecompressionBomb."""

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
    """Open a gzip file; reading raises DecompressionBomb if it expands too much."""
    return io.BufferedReader(_GzipReader(path), CHUNK_BYTES)


def _corrupted(path: Path, reason: str) -> DataError:
    return DataError(path, f"corrupted or not {path.suffix} data: {reason[:1].lower()}{reason[1:]}")


def _detect_format(chunk: bytes, path: Path) -> str | None:
    """Format and fix for a file that starts with `chunk` and is not text; None for text."""
    if chunk.startswith(_ZIP):
        default = "an Excel workbook; name it .xlsx" if b"xl/workbook.xml" in chunk else _MAGIC[_ZIP]
        return _ZIPPED.get(path.suffix.lower(), default)
    if chunk.startswith(_PARQUET) and path.suffix.lower() == ".parquet":
        return "a Parquet file; export its texts as lines first"
    return next((name for magic, name in _MAGIC.items() if chunk.startswith(magic)), None)


def _chunks(raw: BinaryIO, path: Path) -> Iterator[bytes]:
    stream, total = _decompressor(raw, path), 0
    while chunk := stream.read(CHUNK_BYTES):
        if total == 0 and stream is raw and (format := _detect_format(chunk, path)):
            name, _, fix = format.partition("; ")
            raise DataError(path, f"is {name}", fix)
        total += len(chunk)
        if stream is not raw and is_bomb(total, raw.tell()):
            raise DataError(
                path, f"decompresses to more than {MAX_RATIO} times its size", "if this is right, decompress it first"
            )
        yield chunk
