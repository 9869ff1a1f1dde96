"""Lines of standard input or of files, by the rules of the gate."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import DataError
from weft.text.gate import clean, read_lines

T = TypeVar("T")
CHUNK = 1 << 16
LONGEST = 1 << 24  # characters of a line: input without end has none


def _decoded(encoding: str) -> Iterator[str]:
    decoder, line = codecs.getincrementaldecoder(encoding)("strict"), 1
    source: Any = sys.stdin.buffer
    chunk = b"first"
    while chunk:
        chunk = source.read1(CHUNK)  # what is there, so that a terminal is answered line by line
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            byte = error.object[error.start]
            raise DataError(f"standard input: line {line} (byte 0x{byte:02x}) is not {encoding}; convert it first") from None
        except UnicodeError as error:  # UTF-16 without its first mark
            raise DataError(f"standard input: is not {encoding}: {error}; convert it first") from None
        if "\0" in text:
            line += text.count("\n", 0, text.find("\0"))
            raise DataError(f"standard input: line {line} holds a NUL character; is it binary data?")
        line += text.count("\n")
        yield text


def _checked(line: str, number: int, *, ended: bool) -> str:
    line = clean(line, f"standard input: line {number}").removeprefix("\ufeff" if number == 1 else "")
    return line.removesuffix("\r") if ended else line


def stdin_lines(encoding: str) -> Iterator[str]:
    """Lines of standard input as they come, without `\\n`; what the gate refuses in a file is refused here too."""
    open_line: list[str] = []
    number, size = 1, 0
    for text in _decoded(encoding):
        first, *others = text.split("\n")
        open_line.append(first)
        size += len(first)
        if size > LONGEST:
            raise DataError(f"standard input: line {number} has more than {LONGEST:,} characters; is it text?")
        for other in others:
            yield _checked("".join(open_line), number, ended=True)
            open_line, number, size = [other], number + 1, len(other)
    if rest := "".join(open_line):
        yield _checked(rest, number, ended=False)


def input_lines(files: Sequence[Path] | None, encoding: str) -> Iterator[str]:
    """Lines of the files, or of standard input where there are none."""
    return read_lines(list(files), encoding) if files else stdin_lines(encoding)


def batched(items: Iterator[T], most: int) -> Iterator[list[T]]:
    """Lists of up to `most` items."""
    while batch := list(islice(items, most)):
        yield batch
