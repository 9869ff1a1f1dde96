"""Records of an input file, and the same file with the predictions added.

Tables and JSON are read as in training, but only the text columns are required. Predictions are appended to each record, which
is copied unchanged: quotes, spaces and the digits of numbers stay.
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
    no_column,
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
    texts: tuple[str, ...]  # one or two texts; the words of a tagger
    where: str  # location that precedes `fault` in messages; "" if `fault` includes it
    raw: str  # as it is in the file
    fault: str | None = None  # why it cannot be used
    keys: tuple[str, ...] = ()  # of an object
    end: str = "\n"  # its line ending in the file


Values = Mapping[str, Any]  # values added to a record: a string, a number, a list of them, or None


class OutputFormat(Protocol):
    """An output format of records."""

    @property
    def is_plain(self) -> bool:
        """Whether records are plain lines, which every command formats itself."""

    def head(self, names: Sequence[str]) -> str:
        """The text before the first record; `names` are those of the added values."""

    def row(self, entry: InputRecord, values: Values) -> str:
        """A record with the added values."""

    def tail(self) -> str:
        """The text after the last record."""

    def matches(self, other: OutputFormat) -> bool:
        """Whether records of both forms can be in one file."""


@dataclass(frozen=True)
class OpenedRecords:
    """A file whose records are about to be read."""

    form: OutputFormat
    entries: Iterator[InputRecord]
    notes: list[str] = field(default_factory=list)  # about how it is read
    writes: str = ""  # added to the notes by a command that writes the file


class InputFile(NamedTuple):
    """An input file of a trained run."""

    path: Path
    lines: Callable[[], Iterator[str]]  # from the beginning of the file
    labels: Collection[str] = ()  # labels or tags of the run
    targets: bool = False  # whether to read the targets of pairs, too
    raw: Callable[[], Iterator[RawLine]] | None = None  # the lines with their endings and byte order mark

    def raw_lines(self) -> Iterator[RawLine]:
        return map(RawLine, self.lines()) if self.raw is None else self.raw()


class ColumnSelection(NamedTuple):
    """The columns of a table that a run reads."""

    wanted: tuple[ColumnSpec, ...]  # text columns
    # if the names are the default ones: all columns of a table without a header, in order
    defaults: tuple[ColumnSpec, ...] = ()
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
    """The names, with a number appended to those that a file has already."""
    result = []
    for name in names:
        candidates = chain([name], (f"{name}_{number}" for number in range(2, len(used) + 3)))
        result.append(next(candidate for candidate in candidates if candidate not in used))
    return result


# ---- tables


def _format_value(value: Any, separator: str) -> str:
    if isinstance(value, list | tuple):
        return separator.join(_format_value(item, separator) for item in value)
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _tsv_cell(text: str, delimiter: str) -> str:
    """A cell of a format without quotes: characters that it cannot contain are escaped."""
    text = text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return text.replace(delimiter, f"\\x{ord(delimiter):02x}")


@dataclass(frozen=True)
class TableOutput:
    """A .csv or .tsv."""

    quotes: bool
    delimiter: str
    header: tuple[str, ...] | None  # the cells of the header; None without one
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


def _column_indices(table: OpenTable, used: ColumnSelection) -> tuple[list[int], bool]:
    """The indices of the text columns, from 0, and whether the first line is a header: determined as in training, but the other
    columns may be missing."""
    first, wanted = table.first, tuple(column._replace(role="") for column in used.wanted)
    if any(isinstance(name, int) for _, name in wanted):
        return by_index(table, wanted), False
    if not used.defaults or has_names(first, used.defaults):
        return by_name(table, wanted), True
    if len(first) == 1 == len(wanted):  # only texts, or a header with another delimiter
        if has_names(_DELIMITERS.split(first[0]), used.defaults):
            raise no_column(table, str(wanted[0].name), "")
        return [0], False
    if len(used.defaults) == 1:
        return by_name(table, wanted), True
    if len(first) < len(wanted):
        raise table.wrong_column_count(1, first, f"at least {len(wanted)}")
    if looks_like_header(first, table.peek(PEEK_ROWS)):
        names = " and ".join(f"{name!r}" for _, name in wanted)
        raise DataError(
            file_location(table.path, 1),
            f"no column {names} in the header {', '.join(preview_cells(first))}",
            "rename the text column, or remove the line",
        )
    return [used.defaults.index(column) for column in used.wanted], False


def _table_entries(rows: Iterator[Row], table: OpenTable, indices: Sequence[int]) -> Iterator[InputRecord]:
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


def _open_table(file: InputFile, used: ColumnSelection) -> OpenedRecords:
    path, summary, is_workbook = file.path, FileSummary([file.path], "utf-8"), file_format(file.path) == "xlsx"
    if is_workbook:
        table = open_workbook(path, used.options, summary)
    else:
        table = open_rows(path, file.raw_lines(), used.options, summary)
    indices, has_header = _column_indices(table, used)
    rows = table.raw_rows() if has_header else chain([table.first_row], table.raw_rows())
    form = TableOutput(
        file_format(path) != "tsv",
        table.delimiter or ",",
        tuple(table.first) if has_header else None,
        table.first_row.raw,
        used.separator,
        table.first_row.end or "\n",
    )
    if not has_header and len(table.first) > 1:
        summary.notes.append(no_header_note(table, used.wanted, indices))
    writes = ", written as CSV" if is_workbook else ""
    return OpenedRecords(form, _table_entries(rows, table, indices), summary.notes, writes)


# ---- JSON


class JsonOutput:
    """One object per line, with the added values after its own keys."""

    is_plain = False

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys  # of the first object

    def head(self, names: Sequence[str]) -> str:
        return ""

    def row(self, entry: InputRecord, values: Values) -> str:
        values = dict(values) if entry.problem is None else {**values, "error": entry.problem}
        # all objects use the names that are unused in the first one, unless they have such a key themselves
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


def _json_entry(value: Value, path: Path, used: ColumnSelection) -> InputRecord:
    where, keys = file_location(path, value.line), [str(name) for _, name in used.wanted]
    # an object of a list may span several lines; values cannot be added to anything but an object
    raw = " ".join(value.raw.strip().split("\n")) if isinstance(value.value, dict) else ""
    own_keys, end = tuple(value.value) if isinstance(value.value, dict) else (), value.end or "\n"
    try:
        row = as_object(value.value, keys, where)
        texts = tuple(get_string(row, key, where) for key in keys)
    except DataError as error:
        return InputRecord(None, (), "", raw, str(error), own_keys, end)
    return InputRecord("\t".join(texts), texts, where, raw, None, own_keys, end)


def _parquet_values(path: Path, keys: Sequence[str]) -> Iterator[Value]:
    for number, row, values in read_parquet(path, keys, None, FileSummary([path], "utf-8")):
        yield Value(number, row, json.dumps(as_json(values), ensure_ascii=False, allow_nan=False))


def _open_objects(file: InputFile, used: ColumnSelection) -> OpenedRecords:
    path, keys, is_parquet = file.path, [str(name) for _, name in used.wanted], file_format(file.path) == "parquet"
    for role, name in used.wanted:
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
            get_string(row, key, file_location(path, first.line))  # raises: this is an unrelated file
    entries = (_json_entry(value, path, used) for value in chain([first], values))
    notes = [f"{path.name}: Parquet, {pluralize(len(row), 'column')}"] if is_parquet else []
    return OpenedRecords(JsonOutput(list(row)), entries, notes, ", written as JSONL")


def open_records(file: InputFile, used: ColumnSelection) -> OpenedRecords:
    """The records of a table, JSON or Parquet file."""
    return (_open_objects if file_format(file.path) in OBJECT_FORMATS else _open_table)(file, used)
