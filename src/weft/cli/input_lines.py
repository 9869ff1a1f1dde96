"""Lines of standard input or of files, checked as training data is; an invalid line may be an error among the others."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import DataError
from weft.text.compression import read_bytes
from weft.text.reading import MAX_LINE_CHARS, RawLine, check_encoding, check_text

T = TypeVar("T")
Line = str | DataError  # a line, or why it cannot be read
CHUNK_BYTES = 1 << 16
STANDARD_INPUT = "standard input"
_ESCAPED = re.compile("[\udc80-\udcff]")  # the surrogate escape of an invalid byte


def stdin_bytes() -> Iterator[bytes]:
    """Standard input as it arrives."""
    source: Any = sys.stdin.buffer
    while chunk := source.read1(CHUNK_BYTES):  # reads what is available, so that a terminal gets an answer after each line
        yield chunk


def _decode(chunks: Iterator[bytes], encoding: str, source: str) -> Iterator[str]:
    """Decode the bytes; invalid bytes become surrogate escapes, so that they invalidate only their own line."""
    decoder, line = codecs.getincrementaldecoder(encoding)("surrogateescape"), 1
    for chunk in chain(chunks, [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:  # without surrogates, as in UTF-16, no later line can be recognized
            line += error.object[: error.start].count(b"\n")
            byte = error.object[error.start]
            raise DataError(f"{source}:{line}", f"invalid {encoding} (byte 0x{byte:02x})", "convert it first") from None
        except UnicodeError as error:  # UTF-16 without a byte order mark
            raise DataError(source, f"invalid {encoding}: {error}", "convert it first") from None
        line += text.count("\n")
        yield text


def invalid_line(line: str, encoding: str, location: str) -> DataError | None:
    """Why a line is not text; None if it is."""
    if match := _ESCAPED.search(line):
        byte = ord(match[0]) - 0xDC00
        return DataError(location, f"invalid {encoding} (byte 0x{byte:02x})", "convert it first")
    if "\0" in line:
        return DataError(location, "NUL character", "is this binary data?")
    try:
        check_text(line, location)  # some encodings, like UTF-7, can encode half a surrogate pair
    except DataError as error:
        return error
    return None


def _refuse_long_line(parts: Sequence[str], number: int, source: str) -> None:
    if any("\0" in part for part in parts):
        raise DataError(f"{source}:{number}", "NUL character", "is this binary data?")
    raise DataError(f"{source}:{number}", f"line has more than {MAX_LINE_CHARS:,} characters", "is this text?")


def _raw_line(text: str, number: int, end: str) -> RawLine:
    start = "\ufeff" if number == 1 and text.startswith("\ufeff") else ""
    if end and text.endswith("\r"):
        return RawLine(text[len(start) : -1], f"\r{end}", start)
    return RawLine(text[len(start) :], end, start)


def _raw_groups(chunks: Iterator[bytes], encoding: str, source: str) -> Iterator[list[RawLine]]:
    """The lines that end in each chunk, with invalid bytes as surrogate escapes. A line that is too long is refused."""
    open_line: list[str] = []
    number, size = 1, 0
    for text in _decode(chunks, encoding, source):
        first, *rest_lines = text.split("\n")
        open_line.append(first)
        size += len(first)
        if size > MAX_LINE_CHARS:
            _refuse_long_line(open_line, number, source)
        lines: list[RawLine] = []
        for line in rest_lines:
            lines.append(_raw_line("".join(open_line), number, "\n"))
            open_line, number, size = [line], number + 1, len(line)
        if lines:
            yield lines
    if (rest := _raw_line("".join(open_line), number, "")).text:
        yield [rest]


def _groups(chunks: Iterator[bytes], encoding: str, source: str) -> Iterator[list[Line]]:
    """The lines that end in each chunk, with an error in place of each line that is not valid text."""
    number = 0
    for group in _raw_groups(chunks, encoding, source):
        locations = (f"{source}:{number + index}" for index in range(1, len(group) + 1))
        yield [
            invalid_line(line.text, encoding, location) or line.text for line, location in zip(group, locations, strict=True)
        ]
        number += len(group)


def _lines(chunks: Iterator[bytes], encoding: str, source: str) -> Iterator[Line]:
    """Lines in the order of arrival, or an error for each invalid one."""
    return chain.from_iterable(_groups(chunks, encoding, source))


def raw_lines(path: Path, encoding: str) -> Iterator[RawLine]:
    """The lines of a file, including invalid ones."""
    return chain.from_iterable(_raw_groups(read_bytes(path), check_encoding(encoding), str(path)))


def any_lines(files: Sequence[Path] | None, encoding: str) -> Iterator[Line]:
    """Lines of the files, or of standard input without files; an error for each line that cannot be read."""
    if not files:
        yield from _lines(stdin_bytes(), encoding, STANDARD_INPUT)
    for path in files or ():
        yield from _lines(read_bytes(path), check_encoding(encoding), str(path))


def stdin_lines(encoding: str) -> Iterator[str]:
    """Lines of standard input as they arrive; the first invalid one is refused."""
    for line in _lines(stdin_bytes(), encoding, STANDARD_INPUT):
        if isinstance(line, DataError):
            raise line
        yield line


def batched(items: Iterator[T], batch_size: int) -> Iterator[list[T]]:
    """Lists of up to `batch_size` items; if an error is raised, the items before it come first."""
    batch: list[T] = []
    try:
        for item in items:
            batch.append(item)
            if len(batch) == batch_size:
                yield batch
                batch = []
    except DataError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def stdin_batches(encoding: str, batch_size: int) -> Iterator[list[Line]]:
    """The available lines of standard input, up to `batch_size` at a time: the writer may wait for results before it writes
    more."""
    for group in _groups(stdin_bytes(), encoding, STANDARD_INPUT):
        yield from (group[low : low + batch_size] for low in range(0, len(group), batch_size))
