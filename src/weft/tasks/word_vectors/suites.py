"""Suites that word vectors are tested with: pairs of words with a judgment of their similarity, or analogies.

    similarity  two words and a number per line, separated by tabs, commas or blanks; a first line without a number is a header
    analogies   four words per line, "Athens Greece Oslo Norway"; a line that starts with ":" names a section

Every file is one suite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.data.table_rows import file_location
from weft.errors import DataError
from weft.text.reading import FileSummary, listed_files, pluralize, quote, read_lines

_SEPARATOR = re.compile(r"[\t,;]\s*| +")
EXPECTED = "expected two words and a number, or four words"


class SuiteItem(NamedTuple):
    """One line: a pair with its similarity, or an analogy of four words."""

    words: tuple[str, ...]
    similarity: float | None  # None: an analogy
    path: Path
    line: int  # in the file, from 1

    @property
    def question(self) -> str:
        """What a model is asked: 'tiger, cat' or 'Athens : Greece = Oslo : ?'."""
        if self.similarity is not None:
            return ", ".join(self.words)
        return f"{self.words[0]} : {self.words[1]} = {self.words[2]} : ?"

    @property
    def answer(self) -> str:
        return self.words[3] if self.similarity is None else f"{self.similarity:g}"


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _read_file(path: Path, encoding: str, summary: FileSummary) -> Iterator[SuiteItem]:
    size = 0  # cells per line, as in the first one
    for number, line in enumerate(read_lines(path, encoding, summary), 1):
        if not line.strip() or line.startswith((":", "#")):
            continue
        cells = [cell for cell in _SEPARATOR.split(line.strip()) if cell]
        similarity = _number(cells[2]) if len(cells) == 3 else None
        if number == 1 and len(cells) == 3 and similarity is None:
            continue  # names of columns
        is_item = similarity is not None if len(cells) == 3 else len(cells) == 4
        if not is_item or len(cells) != (size or len(cells)):
            expected = {3: "expected two words and a number, as before", 4: "expected four words, as before"}
            where = file_location(path, number)
            raise DataError(where, f"{expected.get(size, EXPECTED)}, got {quote(line, 40)}", "remove or complete the line")
        size = len(cells)
        yield SuiteItem(tuple(cells[:2] if size == 3 else cells), similarity, path, number)
    if not size:
        raise DataError(path, "has no pairs of words and no analogies", EXPECTED)


@dataclass
class SuiteSummary:
    """Counts of files with suites."""

    files: FileSummary
    size: ColumnSize
    count: int = 0

    @property
    def characters(self) -> int:
        return self.size.characters

    @property
    def num_crlf(self) -> int:
        return self.files.num_crlf

    def add(self, record: SuiteItem) -> None:
        self.count += 1
        self.size.add(record.question)

    def bytes_of(self, column: str) -> int:
        return self.size.bytes

    def describe(self) -> str:
        return f"{listed_files(self.files.paths)}: {pluralize(self.count, 'item')}"

    def strata(self) -> None:
        """None: fractions are taken from the end."""

    def problem(self) -> None:
        """None: nothing is learned from suites."""


@dataclass(frozen=True)
class SuiteFormat:
    """Reads suites as records."""

    encoding: str = "utf-8"
    columns: tuple[str, ...] = ("words",)
    rows: str = "items"
    in_memory: bool = True

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return inputs

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[SuiteItem]:
        for path in inputs:
            yield from _read_file(path, self.encoding, summary)

    def summary(self, inputs: tuple[Path, ...], summary: FileSummary) -> SuiteSummary:
        return SuiteSummary(summary, ColumnSize())

    def texts(self, record: SuiteItem) -> tuple[str, ...]:
        return (record.question,)

    def column_label(self, column: str) -> str:
        return ""

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {"encoding": self.encoding, "files": fingerprints(inputs)}
