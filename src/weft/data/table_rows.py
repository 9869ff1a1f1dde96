"""Rows of tables (.tsv, .csv, .xlsx), with the line or row where each starts. All comes through the gate.

TSV has no quoting: a line is split at its tabs. CSV is what Python's csv module reads, strictly: a quoted field may hold
commas and newlines; what separates its columns is the comma, the semicolon or the tab that its first line has, unless
`data.delimiter` says. Every row of a table must have as many columns as its first one: a stray tab would else move the target
elsewhere, and nobody would notice. Blank lines are no rows, and are skipped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.workbooks import open_sheet
from weft.errors import DataError
from weft.text.compression import PACKED
from weft.text.reading import FileSummary, RawLine, check_text, preview, read_lines

OBJECTS = ("jsonl", "json", "parquet")  # what has keys, and values that may be objects
TEXT_TABLES = ("tsv", "csv")
TYPED = ("xlsx", "parquet")  # what has rows of cells with types, and no lines
TABLES = "no .tsv, .csv, .xlsx, .jsonl, .json or .parquet"
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}  # that are found, the first of them before the others
_NAMES = {**SEPARATORS, "|": "pipe", ":": "colon", " ": "blank"}
CONLL = (".conllu", ".conll", ".conll03", ".iob", ".iob2", ".bio")
_QUOTED = re.compile('"(?:[^"]|"")*"?')


def kind_of(path: Path) -> str:
    """'tsv', 'csv', 'xlsx', 'jsonl', 'json' or 'parquet' by the name, packed or not; 'text' for all else."""
    name = path.with_suffix("") if path.suffix in PACKED else path
    kind = name.suffix.lower().removeprefix(".").replace("xlsm", "xlsx")
    return kind if kind in (*TEXT_TABLES, *TYPED, *OBJECTS) else "text"


def is_conll(path: Path) -> bool:
    """Whether a file is words with tags by its name, packed or not."""
    name = path.with_suffix("") if path.suffix in PACKED else path
    return name.suffix.lower() in CONLL


def numbered(path: Path, number: int) -> str:
    """'line 7', or 'row 7' of what has no lines."""
    return f"{'row' if kind_of(path) in TYPED else 'line'} {number}"


def place_of(path: Path, number: int) -> str:
    """A line, or a row, of a file, for messages: 'a.csv: line 7'."""
    return f"{path}: {numbered(path, number)}"


@dataclass(frozen=True)
class TableOptions:
    """How tables are read."""

    encoding: str = "utf-8"
    delimiter: str | None = None  # between the columns of .csv and .tsv; None: as their first line has it
    sheet: str | int | None = None  # of .xlsx, a name, or a place from 1; None: the first

    def provenance(self) -> dict[str, Any]:
        """What is given of it besides the encoding: what a corpus depends on."""
        given = {"delimiter": self.delimiter, "sheet": self.sheet}
        return {name: value for name, value in given.items() if value is not None}


AS_USUAL = TableOptions()


def preview_cells(cells: Sequence[str]) -> list[str]:
    return [preview(cell, 40) for cell in cells]


# ---- tables


class Row(NamedTuple):
    """A row of a table: where it starts, from 1, and how it stands in its file; that of a workbook as CSV."""

    line: int
    cells: list[str]
    raw: str
    end: str = "\n"  # behind it


def separator_of(path: Path, first: str) -> str:
    """What separates the columns of a table with this first line; in CSV what stands there outside quotes, a comma before all
    else."""
    if kind_of(path) == "tsv":
        return "\t"
    bare = _QUOTED.sub("", first)
    return next((mark for mark in SEPARATORS if mark in bare), ",")


def _tsv(lines: Iterator[RawLine], separator: str) -> Iterator[Row]:
    for number, (text, end, start) in enumerate(lines, 1):
        yield Row(number, text.split(separator), start + text, end)


def _csv(lines: Iterator[RawLine], path: Path, separator: str) -> Iterator[Row]:
    taken: list[RawLine] = []

    def fed() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line.text + "\n"

    reader = csv.reader(fed(), strict=True, delimiter=separator)
    while True:
        start = reader.line_num + 1
        taken.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "field limit" in str(error):
                raise DataError(
                    path,
                    f"line {start} has a field of more than {csv.field_size_limit():,} characters, too long for CSV",
                    "is a quote not closed? if it is that long, write .tsv or .jsonl",
                ) from None
            raise DataError(
                path, f"line {start} is not CSV: {error}", "is a quote not closed, or not doubled? (.tsv has no quotes)"
            ) from None
        last = taken.pop()
        before = "".join(line.start + line.text + line.end for line in taken)
        yield Row(start, cells, before + last.start + last.text, last.end)


def split_rows(path: Path, lines: Iterator[RawLine], separator: str) -> Iterator[Row]:
    """The rows of the lines of a table; a blank line is one with a blank cell."""
    return _tsv(lines, separator) if kind_of(path) == "tsv" else _csv(lines, path, separator)


def csv_cell(text: str, separator: str = ",") -> str:
    """A cell as CSV has it, in quotes where it needs them."""
    if any(mark in text for mark in (separator, '"', "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text


def _sheet_rows(rows: Iterator[tuple[int, list[str]]], summary: FileSummary) -> Iterator[Row]:
    """Rows of a workbook: those behind the last that is filled, and cells behind those of the first, are none."""
    blank, width = 0, 0
    for number, cells in rows:
        filled = len(cells)
        while filled > 0 and not cells[filled - 1]:
            filled -= 1
        width = width or max(1, filled)
        if not filled and number > 1:
            blank += 1
            continue
        summary.blank, blank = summary.blank + blank, 0
        own = cells[: max(filled, width)] + [""] * (width - len(cells))
        yield Row(number, own, ",".join(map(csv_cell, own)))


def is_blank(cells: Sequence[str]) -> bool:
    return len(cells) <= 1 and not "".join(cells).strip(" ")


@dataclass
class OpenTable:
    """A table whose first row has been read."""

    path: Path
    separator: str  # "" where cells are not separated by a character
    begin: Row
    summary: FileSummary
    _rest: Iterator[Row]
    given: bool = False  # whether it was said what separates columns

    @property
    def first(self) -> list[str]:
        """The cells of the first row."""
        return self.begin.cells

    def wrong_column_count(self, line: int, cells: Sequence[str], wanted: str) -> DataError:
        problem = wrong_column_count(cells, wanted, self.separator)
        return DataError("", f"{place_of(self.path, line)} {problem}{self.one_column() if line == 1 else ''}")

    def separated(self, cells: Sequence[str]) -> str:
        """Cells, and what was taken for what separates them, for messages."""
        return _separated(cells, self.separator)

    def one_column(self) -> str:
        """What to do about a first line with one column, for messages; "" where it has more."""
        if len(self.first) > 1 or not self.separator:
            return ""
        return "; is that what data.delimiter says?" if self.given else "; set data.delimiter if it is something else"

    def peek(self, limit: int) -> list[list[str]]:
        """The cells of the next rows, which are still to come; blank lines are among them."""
        found = []
        for row in self._rest:
            found.append(row)
            if len(found) == limit:
                break
        self._rest = chain(found, self._rest)
        return [row.cells for row in found]

    def all(self) -> Iterator[Row]:
        """All rows, the first among them."""
        return chain([self.begin], self._rest)

    def has_rows(self) -> Iterator[Row]:
        """The rows after the first, whatever their columns; blank lines are none."""
        for row in self._rest:
            if is_blank(row.cells):
                self.summary.blank += 1
            else:
                yield row

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """The rows after the first, and the line where each starts; all have as many columns."""
        for line, cells, _, _ in self.has_rows():
            if len(cells) != len(self.first):
                raise self.wrong_column_count(line, cells, f"{len(self.first)} as {numbered(self.path, 1)} has")
            yield line, cells


def _separated(cells: Sequence[str], separator: str) -> str:
    told = f"; columns are separated by a {_NAMES.get(separator) or repr(separator)}" if separator else ""
    return ", ".join(map(repr, preview_cells(cells))) + told


def wrong_column_count(cells: Sequence[str], wanted: str, separator: str) -> str:
    """What is wrong with a row that has too few columns, or too many."""
    count = f"{len(cells)} {'column' if len(cells) == 1 else 'columns'}"
    return f"has {count}, not {wanted}: {_separated(cells, separator)}"


def _refuse_blank(path: Path, first: Row) -> None:
    if is_blank(first.cells):
        place = place_of(path, 1)
        raise DataError("", f"{place} is blank; a table begins with its header, or with its first row", "take it out")


def open_rows(path: Path, lines: Iterator[RawLine], options: TableOptions, summary: FileSummary) -> OpenTable:
    """A .tsv or .csv, whose lines are given, with its first row."""
    begin = next(lines, None)
    if begin is None:
        raise DataError(path, "is empty", "give a file with text in it")
    separator = options.delimiter or separator_of(path, begin.text)
    if separator != {"tsv": "\t"}.get(kind_of(path), ","):
        named = f"{_NAMES[separator]}s" if separator in _NAMES else repr(separator)
        summary.notes.append(f"{path.name}: columns are separated by {named}")
    rows = split_rows(path, chain([begin], lines), separator)
    first = next(rows)
    _refuse_blank(path, first)
    return OpenTable(path, separator, first, summary, rows, options.delimiter is not None)


def open_workbook(path: Path, options: TableOptions, summary: FileSummary) -> OpenTable:
    """A sheet of an .xlsx, with its first row."""
    sheet = open_sheet(path, options.sheet)
    among = f", one of {sheet.sheets}" if sheet.sheets > 1 else ""
    summary.notes.append(f"{path.name}: sheet {sheet.name!r}{among}")
    summary.container = "Excel"
    rows = _sheet_rows(sheet.rows, summary)
    first = next(rows, None)
    if first is None:
        raise DataError(path, f"sheet {sheet.name!r} is empty", "give one with examples in it, or set data.sheet")
    _refuse_blank(path, first)
    return OpenTable(path, "", first, summary, rows)


def _checked(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """Rows of a workbook; what no text holds is refused."""
    for row in rows:
        check_text("\t".join(row.cells), place_of(path, row.line))
        yield row


def open_table(path: Path, options: TableOptions, summary: FileSummary) -> OpenTable:
    """A .tsv, .csv or .xlsx, with its first row."""
    if kind_of(path) != "xlsx":
        return open_rows(path, map(RawLine, read_lines(path, options.encoding, summary)), options, summary)
    table = open_workbook(path, options, summary)
    rows = _checked(path, table.all())
    return replace(table, begin=next(rows), _rest=rows)
