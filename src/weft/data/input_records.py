"""Reads the records of input files, and writes them with added predictions.

Tables and JSON are read as in training, but only the text columns are required. Predictions are appended to each record, which
is otherwise copied unchanged, with its quotes, spaces and the digits of its numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from weft.data.columns import (
    PEEK_ROWS,
    ColumnSpec,
    by_index,
    by_name,
    has_names,
    looks_like_header,
    missing_column,
    no_header_note,
)
from weft.data.json_objects import Value, as_object, get_string, has_key, json_values
from weft.data.table_rows import (
    DEFAULT_TABLE_OPTIONS,
    OBJECT_FORMATS,
    OpenTable,
    Row,
    TableOptions,
    csv_cell,
    file_format,
    file_location,
    open_rows,
    open_workbook,
    preview_cells,
    wrong_column_count,
)
from weft.data.workbooks import as_json, read_parquet
from weft.errors import DataError
from weft.text.reading import FileSummary, RawLine, pluralize

_DELIMITERS = re.compile("[,;|\t]")


class InputRecord(NamedTuple):
    """A record of an input file."""

    text: str | None  # as one line; None if it cannot be read
    texts: tuple[str, ...]  # one or two texts; for a tagger, the words
    where: str  # location for messages; "" if `problem` includes it
    raw: str  # unchanged text of the file
    problem: str | None = None  # reason why it cannot be used
    keys: tuple[str, ...] = ()  # of a JSON object
    end: str = "\n"  # line ending


Values = Mapping[str, Any]  # added to a record: strings, numbers, lists of them, or None


class OutputFormat(Protocol):
    """Writes records with added values, in the format of the input file."""

    @property
    def is_plain(self) -> bool:
        """Whether records are plain lines, which each command formats itself."""

    def head(self, names: Sequence[str]) -> str:
        """Text before the first record, such as a header; `names` are the names of the added values."""

    def row(self, entry: InputRecord, values: Values) -> str:
        """A record with the added values."""

    def tail(self) -> str:
        """Text after the last record."""

    def matches(self, other: OutputFormat) -> bool:
        """Whether one output file can have records of both formats."""


@dataclass(frozen=True)
class OpenedRecords:
    """An input file, opened."""

    form: OutputFormat
    entries: Iterator[InputRecord]
    notes: list[str] = field(default_factory=list)  # about its format
    writes: str = ""  # note about the output format, for commands that write the records


class InputFile(NamedTuple):
    """An input file of a trained run."""

    path: Path
    lines: Callable[[], Iterator[str]]  # reads the file from its beginning
    labels: Collection[str] = ()  # labels or tags of the run
    targets: bool = False  # whether to read the targets of pairs
    raw: Callable[[], Iterator[RawLine]] | None = None  # like `lines`, with line endings and byte order mark

    def raw_lines(self) -> Iterator[RawLine]:
        return map(RawLine, self.lines()) if self.raw is None else self.raw()


class ColumnSelection(NamedTuple):
    """The columns of a table that a run reads."""

    columns: tuple[ColumnSpec, ...]  # text columns
    # all columns of a table without a header, in order; () if the names are not the default ones
    default_columns: tuple[ColumnSpec, ...] = ()
    separator: str = ","  # between several values in a cell
    options: TableOptions = DEFAULT_TABLE_OPTIONS


@dataclass(frozen=True)
class PlainOutput:
    """Plain lines."""

    is_plain: bool = True

    def head(self, names: Sequence[str]) -> str:
        return ""

    def row(self, entry: InputRecord, values: Values) -> str:
        return "\t".join("" if value is None else str(value) for value in values.values()) + "\n"

    def tail(self) -> str:
        return ""

    def matches(self, other: OutputFormat) -> bool:
        return other.is_plain


def unused_names(names: Sequence[str], used: Sequence[str]) -> list[str]:
    """`names`, with a number appended to those that are in `used`."""
    unused = []
    for name in names:
        candidates = chain([name], (f"{name}_{number}" for number in range(2, len(used) + 3)))
        unused.append(next(candidate for candidate in candidates if candidate not in used))
    return unused


# ---- tables


def _format_value(value: Any, separator: str) -> str:
    if isinstance(value, list | tuple):
        return separator.join(_format_value(item, separator) for item in value)
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _tsv_cell(text: str, delimiter: str) -> str:
    """A cell of a format without quotes: tabs, line breaks and delimiters are escaped."""
    text = text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return text.replace(delimiter, f"\\x{ord(delimiter):02x}")


@dataclass(frozen=True)
class TableOutput:
    """Output as .csv or .tsv."""

    quotes: bool
    delimiter: str
    header: tuple[str, ...] | None  # cells of the header; None without one
    header_line: str
    separator: str  # between several values in a cell
    end: str = "\n"  # line ending of the header
    is_plain: bool = False

    def _append(self, raw: str, cells: Sequence[str], end: str) -> str:
        escaped = [csv_cell(cell, self.delimiter) if self.quotes else _tsv_cell(cell, self.delimiter) for cell in cells]
        return self.delimiter.join([raw, *escaped]) + end

    def head(self, names: Sequence[str]) -> str:
        return "" if self.header is None else self._append(self.header_line, unused_names(names, self.header), self.end)

    def row(self, entry: InputRecord, values: Values) -> str:
        return self._append(entry.raw, [_format_value(value, self.separator) for value in values.values()], entry.end)

    def tail(self) -> str:
        return ""

    def matches(self, other: OutputFormat) -> bool:
        return isinstance(other, TableOutput) and (self.quotes, self.delimiter, self.header) == (
            other.quotes,
            other.delimiter,
            other.header,
        )


def _column_indices(table: OpenTable, selection: ColumnSelection) -> tuple[list[int], bool]:
    """0-based indices of the text columns, and whether the first line is a header. As in training, but the other columns may be
    missing."""
    first, columns = table.first, tuple(column._replace(role="") for column in selection.columns)
    if any(isinstance(name, int) for _, name in columns):
        return by_index(table, columns), False
    if not selection.default_columns or has_names(first, selection.default_columns):
        return by_name(table, columns), True
    if len(first) == 1 == len(columns):  # only texts, or a header with an unexpected delimiter
        if has_names(_DELIMITERS.split(first[0]), selection.default_columns):
            raise missing_column(table, str(columns[0].name), "")
        return [0], False
    if len(selection.default_columns) == 1:
        return by_name(table, columns), True
    if len(first) < len(columns):
        raise table.wrong_column_count(1, first, f"at least {len(columns)}")
    if looks_like_header(first, table.peek(PEEK_ROWS)):
        names = " and ".join(f"{name!r}" for _, name in columns)
        raise DataError(
            file_location(table.path, 1),
            f"no column {names} in the header {', '.join(preview_cells(first))}",
            "rename the text column, or remove the line",
        )
    return [selection.default_columns.index(column) for column in selection.columns], False


def _table_records(rows: Iterator[Row], table: OpenTable, indices: Sequence[int]) -> Iterator[InputRecord]:
    width, last_end = len(table.first), table.first_row.end or "\n"
    for line, cells, raw, end in rows:
        where, last_end = file_location(table.path, line), end or last_end  # the last line may have no line ending
        if len(cells) != width:
            problem = wrong_column_count(cells, str(width), table.delimiter)
            padded = raw + table.delimiter * max(0, width - len(cells))
            yield InputRecord(None, (), where, padded, problem, end=last_end)
            continue
        texts = tuple(cells[index] for index in indices)
        yield InputRecord("\t".join(texts), texts, where, raw, end=last_end)


def _open_table(file: InputFile, selection: ColumnSelection) -> OpenedRecords:
    path, summary, is_workbook = file.path, FileSummary([file.path], "utf-8"), file_format(file.path) == "xlsx"
    if is_workbook:
        table = open_workbook(path, selection.options, summary)
    else:
        table = open_rows(path, file.raw_lines(), selection.options, summary)
    indices, has_header = _column_indices(table, selection)
    rows = table.raw_rows() if has_header else chain([table.first_row], table.raw_rows())
    form = TableOutput(
        file_format(path) != "tsv",
        table.delimiter or ",",
        tuple(table.first) if has_header else None,
        table.first_row.raw,
        selection.separator,
        table.first_row.end or "\n",
    )
    if not has_header and len(table.first) > 1:
        summary.notes.append(no_header_note(table, selection.columns, indices))
    writes = ", written as CSV" if is_workbook else ""
    return OpenedRecords(form, _table_records(rows, table, indices), summary.notes, writes)


# ---- JSON


class JsonOutput:
    """Output as one JSON object per line, with the added values after the keys of the input."""

    is_plain = False

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys  # of the first object

    def head(self, names: Sequence[str]) -> str:
        return ""

    def row(self, entry: InputRecord, values: Values) -> str:
        values = dict(values) if entry.problem is None else {**values, "error": entry.problem}
        # names that are unused in the first object and in this one
        names = unused_names(list(values), [*self.keys, *entry.keys])
        added = json.dumps(dict(zip(names, values.values(), strict=True)), ensure_ascii=False, allow_nan=False)
        if not entry.raw:
            return added + entry.end
        inner = entry.raw[1:-1].strip()
        return f"{{{inner}{', ' if inner else ''}{added[1:]}{entry.end}"

    def tail(self) -> str:
        return ""

    def matches(self, other: OutputFormat) -> bool:
        return isinstance(other, JsonOutput)


def _json_record(value: Value, path: Path, selection: ColumnSelection) -> InputRecord:
    where, keys = file_location(path, value.line), [str(name) for _, name in selection.columns]
    # an object in a list may span several lines; values can only be added to objects
    raw = " ".join(value.raw.strip().split("\n")) if isinstance(value.value, dict) else ""
    object_keys, end = tuple(value.value) if isinstance(value.value, dict) else (), value.end or "\n"
    try:
        row = as_object(value.value, keys, where)
        texts = tuple(get_string(row, key, where) for key in keys)
    except DataError as error:
        return InputRecord(None, (), "", raw, str(error), object_keys, end)
    return InputRecord("\t".join(texts), texts, where, raw, None, object_keys, end)


def _parquet_values(path: Path, keys: Sequence[str]) -> Iterator[Value]:
    for number, row, values in read_parquet(path, keys, None, FileSummary([path], "utf-8")):
        yield Value(number, row, json.dumps(as_json(values), ensure_ascii=False, allow_nan=False))


def _open_objects(file: InputFile, selection: ColumnSelection) -> OpenedRecords:
    path, keys, is_parquet = file.path, [str(name) for _, name in selection.columns], file_format(file.path) == "parquet"
    for role, name in selection.columns:
        if isinstance(name, int):
            names = "column names" if is_parquet else "keys"
            raise DataError(
                path, f"has {names}, but the run was trained with data.{role}_column = {name}", "use a .csv or .tsv"
            )
    values = _parquet_values(path, keys) if is_parquet else json_values(path, file.raw_lines(), FileSummary([path], "utf-8"))
    first = next(values, None)
    if first is None:
        raise DataError(path, f"no {'rows' if is_parquet else 'objects'}")
    row = as_object(first.value, keys, file_location(path, first.line))
    for key in keys:
        if not has_key(row, key):
            get_string(row, key, file_location(path, first.line))  # raises an error
    entries = (_json_record(value, path, selection) for value in chain([first], values))
    notes = [f"{path.name}: Parquet, {pluralize(len(row), 'column')}"] if is_parquet else []
    return OpenedRecords(JsonOutput(list(row)), entries, notes, ", written as JSONL")


def open_records(file: InputFile, selection: ColumnSelection) -> OpenedRecords:
    """Open the records of a table, JSON or Parquet file."""
    return (_open_objects if file_format(file.path) in OBJECT_FORMATS else _open_table)(file, selection)
