"""Lines of standard input or of files, by the rules of the gate; what can't be read may be a fault among the others."""

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
Line = str | DataError  # a line, or why it can't be read
CHUNK = 1 << 16
STANDARD = "standard input"
_ESCAPED = re.compile("[\udc80-\udcff]")  # what stands for a byte that is none of its encoding


def _standard_bytes() -> Iterator[bytes]:
    source: Any = sys.stdin.buffer
    while chunk := source.read1(CHUNK):  # what is there, so that a terminal is answered line by line
        yield chunk


def _decoded(chunks: Iterator[bytes], encoding: str, where: str) -> Iterator[str]:
    """The text of the bytes; those that are none of the encoding as surrogates, so that they cost their line alone."""
    decoder, line = codecs.getincrementaldecoder(encoding)("surrogateescape"), 1
    for chunk in chain(chunks, [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:  # where no byte can stand for itself, as in UTF-16, no line can be told after it
            line += error.object[: error.start].count(b"\n")
            byte = error.object[error.start]
            raise DataError(where, f"line {line} (byte 0x{byte:02x}) is not {encoding}", "convert it first") from None
        except UnicodeError as error:  # UTF-16 without its first mark
            raise DataError(where, f"is not {encoding}: {error}", "convert it first") from None
        line += text.count("\n")
        yield text


def invalid_line(line: str, encoding: str, where: str) -> DataError | None:
    """Why a line is no text, if it is none."""
    if wrong := _ESCAPED.search(line):
        byte = ord(wrong[0]) - 0xDC00
        return DataError("", f"{where} (byte 0x{byte:02x}) is not {encoding}", "convert it first")
    if "\0" in line:
        return DataError("", f"{where} holds a NUL character", "is it binary data?")
    try:
        check_text(line, where)  # some encodings, like UTF-7, let half a surrogate pair through
    except DataError as error:
        return error
    return None


def _refuse_endless(parts: Sequence[str], number: int, where: str) -> None:
    if any("\0" in part for part in parts):
        raise DataError(where, f"line {number} holds a NUL character", "is it binary data?")
    raise DataError(where, f"line {number} has more than {MAX_LINE_CHARS:,} characters", "is it text?")


def _raw_line(text: str, number: int, end: str) -> RawLine:
    start = "\ufeff" if number == 1 and text.startswith("\ufeff") else ""
    if end and text.endswith("\r"):
        return RawLine(text[len(start) : -1], f"\r{end}", start)
    return RawLine(text[len(start) :], end, start)


def _raw_groups(chunks: Iterator[bytes], encoding: str, where: str) -> Iterator[list[RawLine]]:
    """The lines that end in each chunk; bytes that are none of the encoding are still in them. A line without
    end stops all."""
    open_line: list[str] = []
    number, size = 1, 0
    for text in _decoded(chunks, encoding, where):
        first, *others = text.split("\n")
        open_line.append(first)
        size += len(first)
        if size > MAX_LINE_CHARS:
            _refuse_endless(open_line, number, where)
        found: list[RawLine] = []
        for other in others:
            found.append(_raw_line("".join(open_line), number, "\n"))
            open_line, number, size = [other], number + 1, len(other)
        if found:
            yield found
    if (rest := _raw_line("".join(open_line), number, "")).text:
        yield [rest]


def _groups(chunks: Iterator[bytes], encoding: str, where: str) -> Iterator[list[Line]]:
    """The same; a line that the gate would refuse in a file is a fault."""
    number = 0
    for group in _raw_groups(chunks, encoding, where):
        places = (f"{where}: line {number + at}" for at in range(1, len(group) + 1))
        yield [invalid_line(line.text, encoding, place) or line.text for line, place in zip(group, places, strict=True)]
        number += len(group)


def _lines(chunks: Iterator[bytes], encoding: str, where: str) -> Iterator[Line]:
    """Lines as they come."""
    return chain.from_iterable(_groups(chunks, encoding, where))


def raw_lines(path: Path, encoding: str) -> Iterator[RawLine]:
    """The lines of a file, whatever bytes they hold."""
    return chain.from_iterable(_raw_groups(read_bytes(path), check_encoding(encoding), str(path)))


def any_lines(files: Sequence[Path] | None, encoding: str) -> Iterator[Line]:
    """Lines of the files, or of standard input where there are none, and a fault for each that can't be read."""
    if not files:
        yield from _lines(_standard_bytes(), encoding, STANDARD)
    for path in files or ():
        yield from _lines(read_bytes(path), check_encoding(encoding), str(path))


def stdin_lines(encoding: str) -> Iterator[str]:
    """Lines of standard input as they come; what the gate refuses in a file is refused here too."""
    for line in _lines(_standard_bytes(), encoding, STANDARD):
        if isinstance(line, DataError):
            raise line
        yield line


def batched(items: Iterator[T], batch_size: int) -> Iterator[list[T]]:
    """Lists of up to `most` items; where they break off, those before it first."""
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


def standard_groups(encoding: str, batch_size: int) -> Iterator[list[Line]]:
    """Lines of standard input, up to `most` at a time: those that are there, for who writes it may wait for what becomes of
    them before writing more."""
    for group in _groups(_standard_bytes(), encoding, STANDARD):
        yield from (group[low : low + batch_size] for low in range(0, len(group), batch_size))
