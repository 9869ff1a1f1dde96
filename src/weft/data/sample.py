"""The first lines or rows of a file, from which its encoding, delimiter and columns are detected."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.column_names import KNOWN, normalized
from weft.data.column_values import ColumnValues, Value
from weft.data.columns import MIN_ROWS, PEEK_ROWS, looks_like_header
from weft.data.json_objects import as_object, json_values
from weft.data.table_rows import TableOptions, file_format, file_location, is_blank, open_table
from weft.data.workbooks import read_parquet
from weft.errors import DataError
from weft.text.compression import read_bytes
from weft.text.reading import FileSummary, RawLine, pluralize, quote, read_lines

SAMPLE_BYTES = 1 << 20
SAMPLE_ROWS = 2000
MAX_DEPTH = 4  # of nested JSON objects
DELIMITERS = (",", ";", "\t", "|")
MAX_CONTROL = 0.01  # fraction of control characters in a text
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
MAX_NAME_WORDS, MAX_NAME_CHARS = 4, 60  # of a column name
DEFAULT_NAMES = {"label", "text", "source", "target"}


def num_sampled(count: int, unit: str) -> str:
    """Number of lines or rows in a sample: '7 rows', 'the first 2,000 rows'."""
    return f"the first {count:,} {unit}s" if count >= SAMPLE_ROWS else pluralize(count, unit)


# ---- text


def detect_encoding(path: Path) -> str:
    """The encoding of a text file: UTF-8 or UTF-16 if its first bytes are valid, otherwise that of Windows or latin-1. Binary
    data is an error."""
    raw = next(read_bytes(path), b"")[:SAMPLE_BYTES]
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in raw or len(_CONTROL.findall(raw)) > MAX_CONTROL * len(raw):
        raise DataError(path, "binary data, not text", "for UTF-16 without a byte order mark, set data.encoding")
    # latin-1 and cp1252 differ in bytes 0x80 to 0x9f only, which are quotation marks and dashes in cp1252
    names = ("utf-8", "cp1252") if re.search(rb"[\x80-\x9f]", raw) else ("utf-8",)
    for name in names:
        try:
            codecs.getincrementaldecoder(name)().decode(raw)
        except UnicodeDecodeError:
            continue
        return name
    return "latin-1"


def sample_lines(path: Path, encoding: str) -> list[str]:
    """The first lines of a text file."""
    lines, size = list[str](), 0
    for line in islice(read_lines(path, encoding, max_length=None), SAMPLE_ROWS):
        lines.append(line)
        size += len(line)
        if size >= SAMPLE_BYTES:
            break
    return lines


# ---- tables


class TableSample(NamedTuple):
    """The first rows of a table."""

    columns: list[ColumnValues]
    num_rows: int
    has_names: bool  # a header or JSON keys
    delimiter: str | None = None  # None: the reader finds it
    first: Sequence[str] = ()  # the first row or object, for messages

    def describe(self) -> str:
        """The first row, for messages."""
        cells = ", ".join(quote(cell, 30) for cell in self.first[:4])
        return f"{cells}, ..." if len(self.first) > 4 else cells


def _is_name(cell: str) -> bool:
    """Whether a cell can be a column name: short, with a letter, and not a sentence."""
    is_short = len(cell) <= MAX_NAME_CHARS and len(cell.split()) <= MAX_NAME_WORDS
    return not cell or (is_short and any(map(str.isalpha, cell)) and cell[-1] not in ".!?,;:")


def has_header(first: Sequence[str], columns: Sequence[ColumnValues]) -> bool:
    """Whether the first row of a table has column names, given the columns below: most of the cells are typical names, or the
    cells look like names and a column of numbers or labels does not contain its cell."""
    names = [cell.strip() for cell in first]
    filled = [name for name in names if name]
    if not filled or len(set(filled)) < len(filled) or not all(map(_is_name, names)):
        return False
    if any(name in column.texts for name, column in zip(names, columns, strict=True) if name):
        return False
    known = {normalized(name) for name in filled} & KNOWN
    if 2 * len(known) > len(filled) or known & DEFAULT_NAMES:
        return True
    if any(
        column.mean_words > 3 and len(name.split()) > 0.5 * column.mean_words
        for name, column in zip(names, columns, strict=True)
    ):
        return False
    labels = [column for column in columns if column.is_label or column.is_multilabel]
    return any(column.is_number for column in columns) or any(len(column.texts) >= 2 * MIN_ROWS for column in labels)


def _check_names(path: Path, first: Sequence[str], columns: Sequence[ColumnValues]) -> None:
    """Raise for a header with a repeated name: read as a row, it would add its names to the labels. A row of one repeated cell
    may be a pair."""
    counts = Counter(cell.strip() for cell in first if cell.strip())
    repeated = [name for name, count in counts.items() if count > 1]
    if not repeated or len(counts) < 2:
        return
    distinct = {cell.strip(): column for cell, column in zip(first, columns, strict=True) if cell.strip()}
    if has_header(list(distinct), list(distinct.values())):
        problem = f"{counts[repeated[0]]} columns are named {repeated[0]!r}"
        raise DataError(file_location(path, 1), problem, "rename all but one, or set the columns to read")


def _columns(rows: Sequence[Sequence[str]], names: Sequence[str | int]) -> list[ColumnValues]:
    return [ColumnValues(name, tuple(row[index] for row in rows)) for index, name in enumerate(names)]


def _sample_rows(path: Path, options: TableOptions) -> list[list[str]]:
    """The first rows with cells, including a header."""
    table, rows, size = open_table(path, options, FileSummary([path], options.encoding)), list[list[str]](), 0
    for row in islice(table.all_rows(), SAMPLE_ROWS + 1):
        if not is_blank(row.cells):
            rows.append(row.cells)
        size += len(row.raw)
        if size >= SAMPLE_BYTES:
            break
    return rows


def _consistency(rows: Sequence[Sequence[str]]) -> float:
    """The fraction of rows with the most frequent number of columns. 0 if there is only one column, or if cells start with a
    space: then the delimiter is the comma of a sentence."""
    num_columns, count = Counter(map(len, rows)).most_common(1)[0]
    num_spaces = sum(any(cell.startswith(" ") for cell in row[1:]) for row in rows)
    return count / len(rows) if num_columns > 1 and 2 * num_spaces <= len(rows) else 0.0


def _other_delimiter(path: Path, options: TableOptions) -> tuple[str | None, list[list[str]]]:
    """A delimiter that gives all rows the same number of columns, and the rows; None if there is none."""
    for delimiter in DELIMITERS:
        try:
            rows = _sample_rows(path, replace(options, delimiter=delimiter))
        except DataError:
            continue
        if _consistency(rows) == 1:
            return delimiter, rows
    return None, []


def sample_table(path: Path, options: TableOptions, selected: Collection[str | int] = ()) -> TableSample:
    """The first rows of a .tsv, .csv or .xlsx file, or of a text file with `options.delimiter`. A first row with the name of a
    selected column is a header."""
    rows, delimiter = _sample_rows(path, options), options.delimiter
    if options.delimiter is None and file_format(path) != "xlsx" and _consistency(rows) < 1:
        other, other_rows = _other_delimiter(path, options)
        rows, delimiter = (other_rows, other) if other is not None else (rows, delimiter)
    first, num_columns = rows[0], len(rows[0])
    below = [row for row in rows[1:] if len(row) == num_columns]  # about other rows, the reader of the task complains
    unnamed = _columns(below, range(1, num_columns + 1))
    if not selected:  # else the reader of the task looks at the selected columns
        _check_names(path, first, unnamed)
    is_header = has_header(first, unnamed)
    if is_header or set(first) & set(selected) or (below and looks_like_header(first, below[:PEEK_ROWS])):
        named = [column for column in _columns(below, first) if column.name]  # only columns with names can be selected
        return TableSample(named, len(below), True, delimiter, first)
    rows = [first, *below][:SAMPLE_ROWS]
    return TableSample(_columns(rows, range(1, num_columns + 1)), len(rows), False, delimiter, first)


# ---- objects


def _flat(value: dict[str, Any], prefix: str = "", depth: int = MAX_DEPTH) -> Iterator[tuple[str, Value]]:
    """Keys, dotted for nested objects, and values of an object. A value that is not text, a number or a list of them is ""."""
    for key, inner in value.items():
        if isinstance(inner, dict) and depth > 1:
            yield from _flat(inner, f"{prefix}{key}.", depth - 1)
        elif isinstance(inner, list) and all(isinstance(part, str | int) for part in inner):
            yield f"{prefix}{key}", [str(part) for part in inner]
        else:
            is_scalar = inner is None or isinstance(inner, str | int | float)
            yield f"{prefix}{key}", inner if is_scalar else ""


def _read_objects(path: Path, encoding: str) -> Iterator[dict[str, Any]]:
    summary = FileSummary([path], encoding)
    if file_format(path) == "parquet":
        yield from (row.row for row in read_parquet(path, (), None, summary))
        return
    for line, value, _, _ in json_values(path, map(RawLine, read_lines(path, encoding, summary)), summary):
        yield as_object(value, ("a text",), file_location(path, line))


def sample_objects(path: Path, encoding: str) -> TableSample:
    """The first objects of a .jsonl, .json or .parquet file. Keys that are missing in some objects are columns as well."""
    rows, size = list[dict[str, Value]](), 0
    for row in islice(_read_objects(path, encoding), SAMPLE_ROWS):
        rows.append(dict(_flat(row)))
        size += sum(len(value) for value in rows[-1].values() if isinstance(value, str))
        if size >= SAMPLE_BYTES:
            break
    if not rows:
        raise DataError(path, "no objects")
    keys = dict.fromkeys(key for row in rows for key in row)
    if not keys:
        raise DataError(path, "the objects are empty", "write objects with keys, such as a text and its label")
    columns = [ColumnValues(key, tuple(row.get(key) for row in rows)) for key in keys]
    return TableSample(columns, len(rows), True, None, [f"{key}: {value}" for key, value in rows[0].items()])
