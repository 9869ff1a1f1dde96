"""Reads rows of tables (.tsv, .csv, .xlsx), with the line or row where each starts. `weft.text.reading` reads and checks the
text.

TSV has no quoting: a line is split at its tabs. CSV is read with Python's csv module in strict mode: a quoted field may contain
commas and newlines. The delimiter is `data.delimiter`, or else the comma, semicolon or tab in the first line. With
`data.delimiter`, a text file of any name is a table: TSV if it is a tab, otherwise CSV. All rows must have the same number of
columns: otherwise a stray tab would silently move the target to another column. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.workbooks import open_sheet
from weft.errors import DataError
from weft.text.compression import COMPRESSED_SUFFIXES
from weft.text.reading import FileSummary, RawLine, check_text, preview, read_lines

OBJECT_FORMATS = ("jsonl", "json", "parquet")  # with keys, and values that may be objects
TEXT_TABLES = ("tsv", "csv")
TYPED_TABLES = ("xlsx", "parquet")  # with typed cells instead of lines
NOT_A_TABLE = "not a table (.tsv, .csv, .xlsx, .jsonl, .json or .parquet)"
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}  # recognized in this order
_DELIMITER_NAMES = {**DELIMITERS, "|": "pipe", ":": "colon", " ": "space"}
CONLL = (".conllu", ".conll", ".conll03", ".iob", ".iob2", ".bio")
_QUOTED = re.compile('"(?:[^"]|"")*"?')


def file_format(path: Path) -> str:
    """'tsv', 'csv', 'xlsx', 'jsonl', 'json' or 'parquet' by the file name, compressed or not; otherwise 'text'."""
    name = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
    suffix = name.suffix.lower().removeprefix(".").replace("xlsm", "xlsx")
    return suffix if suffix in (*TEXT_TABLES, *TYPED_TABLES, *OBJECT_FORMATS) else "text"


def is_table(path: Path, delimiter: str | None) -> bool:
    """Whether a file is a table or a list of objects: by its name, or because `data.delimiter` is set."""
    return file_format(path) != "text" or delimiter is not None


def is_conll(path: Path) -> bool:
    """Whether a file, compressed or not, has the name of a CoNLL file (words with tags)."""
    name = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
    return name.suffix.lower() in CONLL


def file_location(path: Path, number: int) -> str:
    """Location of a line, or of a row of a table without lines, for messages: 'a.csv:7'."""
    return f"{path}:{number}"


@dataclass(frozen=True)
class TableOptions:
    """Options for reading tables."""

    encoding: str = "utf-8"
    delimiter: str | None = None  # of .csv and .tsv; None: detected in the first line
    sheet: str | int | None = None  # of .xlsx: a name or a 1-based index; None: the first

    def provenance(self) -> dict[str, Any]:
        """The options that are set, except the encoding, for the provenance of a corpus."""
        options = {"delimiter": self.delimiter, "sheet": self.sheet}
        return {name: value for name, value in options.items() if value is not None}


DEFAULT_TABLE_OPTIONS = TableOptions()


def preview_cells(cells: Sequence[str]) -> list[str]:
    return [preview(cell, 40) for cell in cells]


# ---- tables


class Row(NamedTuple):
    """A row of a table."""

    line: int  # first line, from 1
    cells: list[str]
    raw: str  # unchanged text of the file; for a workbook, the row as CSV
    end: str = "\n"  # line ending


def detect_delimiter(path: Path, first: str) -> str:
    """The delimiter of a table by its first line; for CSV, the first of DELIMITERS that occurs outside quotes."""
    if file_format(path) == "tsv":
        return "\t"
    unquoted = _QUOTED.sub("", first)
    return next((delimiter for delimiter in DELIMITERS if delimiter in unquoted), ",")


def _split_tsv(lines: Iterator[RawLine], delimiter: str) -> Iterator[Row]:
    for number, (text, end, start) in enumerate(lines, 1):
        yield Row(number, text.split(delimiter), start + text, end)


def _split_csv(lines: Iterator[RawLine], path: Path, delimiter: str) -> Iterator[Row]:
    row_lines: list[RawLine] = []

    def text_lines() -> Iterator[str]:
        for line in lines:
            row_lines.append(line)
            yield line.text + "\n"

    reader = csv.reader(text_lines(), strict=True, delimiter=delimiter)
    while True:
        start = reader.line_num + 1
        row_lines.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "field limit" in str(error):
                raise DataError(
                    file_location(path, start),
                    f"a field is longer than the {csv.field_size_limit():,} characters that CSV allows",
                    "close the quote if it is missing, or use .tsv or .jsonl",
                ) from None
            problem = f"invalid CSV: {error}"
            raise DataError(file_location(path, start), problem, "close or double the quote (.tsv has no quotes)") from None
        last = row_lines.pop()
        before = "".join(line.start + line.text + line.end for line in row_lines)
        yield Row(start, cells, before + last.start + last.text, last.end)


def split_rows(path: Path, lines: Iterator[RawLine], delimiter: str) -> Iterator[Row]:
    """The rows of a table. A blank line is a row with one blank cell."""
    is_tsv = file_format(path) == "tsv" or (file_format(path) == "text" and delimiter == "\t")
    return _split_tsv(lines, delimiter) if is_tsv else _split_csv(lines, path, delimiter)


def csv_cell(text: str, delimiter: str = ",") -> str:
    """A cell as CSV, quoted if necessary."""
    if any(char in text for char in (delimiter, '"', "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text


def _sheet_rows(rows: Iterator[tuple[int, list[str]]], summary: FileSummary) -> Iterator[Row]:
    """Rows of a workbook, without empty rows at the end and empty cells beyond the last column of the first row."""
    num_blank, num_columns = 0, 0
    for number, cells in rows:
        num_filled = len(cells)
        while num_filled > 0 and not cells[num_filled - 1]:
            num_filled -= 1
        num_columns = num_columns or max(1, num_filled)
        if not num_filled and number > 1:
            num_blank += 1
            continue
        summary.blank, num_blank = summary.blank + num_blank, 0
        row_cells = cells[: max(num_filled, num_columns)] + [""] * (num_columns - len(cells))
        yield Row(number, row_cells, ",".join(map(csv_cell, row_cells)))


def is_blank(cells: Sequence[str]) -> bool:
    return len(cells) <= 1 and not "".join(cells).strip(" ")


@dataclass
class OpenTable:
    """A table whose first row has been read."""

    path: Path
    delimiter: str  # "" if the format has none
    first_row: Row
    summary: FileSummary
    _rest: Iterator[Row]
    is_delimiter_set: bool = False  # by data.delimiter

    @property
    def first(self) -> list[str]:
        """The cells of the first row."""
        return self.first_row.cells

    def wrong_column_count(self, line: int, cells: Sequence[str], expected: str) -> DataError:
        problem = wrong_column_count(cells, expected, self.delimiter)
        return DataError(file_location(self.path, line), problem, self.delimiter_fix() if line == 1 else "")

    def describe_first(self) -> str:
        """Cells of the first row and the delimiter, for messages."""
        cells = ", ".join(map(repr, preview_cells(self.first)))
        return f"{cells} ({_describe_delimiter(self.delimiter)})" if self.delimiter else cells

    def delimiter_fix(self) -> str:
        """The fix for a first line with one column: the delimiter may be wrong. "" if there are more columns."""
        if len(self.first) > 1 or not self.delimiter:
            return ""
        return "check data.delimiter" if self.is_delimiter_set else "set data.delimiter if the delimiter is different"

    def peek(self, limit: int) -> list[list[str]]:
        """Cells of the next rows, including blank lines, without consuming them."""
        rows = list(islice(self._rest, limit))
        self._rest = chain(rows, self._rest)
        return [row.cells for row in rows]

    def all_rows(self) -> Iterator[Row]:
        """All rows, including the first."""
        return chain([self.first_row], self._rest)

    def raw_rows(self) -> Iterator[Row]:
        """The rows after the first, with any number of columns, without blank lines."""
        for row in self._rest:
            if is_blank(row.cells):
                self.summary.blank += 1
            else:
                yield row

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """First line and cells of the rows after the first. Another number of columns is an error."""
        for line, cells, _, _ in self.raw_rows():
            if len(cells) != len(self.first):
                raise self.wrong_column_count(line, cells, str(len(self.first)))
            yield line, cells


def _describe_delimiter(delimiter: str) -> str:
    name = _DELIMITER_NAMES.get(delimiter)
    return f"{name}-separated" if name else f"separated by {delimiter!r}"


def wrong_column_count(cells: Sequence[str], expected: str, delimiter: str) -> str:
    """The problem of a row with the wrong number of columns; `expected` is '2' or 'at least 2'."""
    columns = "column" if expected == "1" else "columns"
    if delimiter in _DELIMITER_NAMES:
        columns = f"{_describe_delimiter(delimiter)} {columns}"
    elif delimiter:
        columns = f"{columns} {_describe_delimiter(delimiter)}"
    return f"expected {expected} {columns}, got {len(cells)}: {', '.join(map(repr, preview_cells(cells)))}"


def _refuse_blank(path: Path, first: Row) -> None:
    if is_blank(first.cells):
        raise DataError(file_location(path, 1), "first line of the table is blank", "remove it")


def open_rows(path: Path, lines: Iterator[RawLine], options: TableOptions, summary: FileSummary) -> OpenTable:
    """Open a .tsv or .csv table, given its lines, and read its first row."""
    first_line = next(lines, None)
    if first_line is None:
        raise DataError(path, "file is empty")
    delimiter = options.delimiter or detect_delimiter(path, first_line.text)
    if delimiter != {"tsv": "\t"}.get(file_format(path), ","):
        name = f"{_DELIMITER_NAMES[delimiter]}s" if delimiter in _DELIMITER_NAMES else repr(delimiter)
        summary.notes.append(f"{path.name}: columns are separated by {name}")
    rows = split_rows(path, chain([first_line], lines), delimiter)
    first = next(rows)
    _refuse_blank(path, first)
    return OpenTable(path, delimiter, first, summary, rows, options.delimiter is not None)


def open_workbook(path: Path, options: TableOptions, summary: FileSummary) -> OpenTable:
    """Open a sheet of an .xlsx workbook and read its first row."""
    sheet = open_sheet(path, options.sheet)
    others = f", one of {sheet.num_sheets}" if sheet.num_sheets > 1 else ""
    summary.notes.append(f"{path.name}: sheet {sheet.name!r}{others}")
    summary.container = "Excel"
    rows = _sheet_rows(sheet.rows, summary)
    first = next(rows, None)
    if first is None:
        raise DataError(path, f"sheet {sheet.name!r} is empty", "set data.sheet to another sheet")
    _refuse_blank(path, first)
    return OpenTable(path, "", first, summary, rows)


def _check_rows(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """Rows of a workbook; characters that a text file cannot contain are an error."""
    for row in rows:
        check_text("\t".join(row.cells), file_location(path, row.line))
        yield row


def open_table(path: Path, options: TableOptions, summary: FileSummary) -> OpenTable:
    """Open a .tsv, .csv or .xlsx table and read its first row."""
    if file_format(path) != "xlsx":
        return open_rows(path, map(RawLine, read_lines(path, options.encoding, summary)), options, summary)
    table = open_workbook(path, options, summary)
    rows = _check_rows(path, table.all_rows())
    return replace(table, first_row=next(rows), _rest=rows)
