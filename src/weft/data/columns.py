"""Reads selected columns of tables: by the names in a header, by JSON keys, or by 1-based index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.json_objects import get_string, get_value, has_key, read_objects
from weft.data.table_rows import OBJECT_FORMATS, OpenTable, TableOptions, file_format, file_location, open_table, preview_cells
from weft.data.workbooks import available
from weft.errors import MAX_LISTED, DataError
from weft.text.reading import FileSummary, check_text

Name = str | int
Cell = str | list[str]  # only JSON has lists


class ColumnSpec(NamedTuple):
    """A column to read, set by the option data.{role}_column; `role` is "" if no option sets it."""

    role: str
    name: Name  # or a 1-based index


DEFAULT_COLUMNS = (ColumnSpec("label", "label"), ColumnSpec("text", "text"))


def by_index(table: OpenTable, columns: Sequence[ColumnSpec]) -> list[int]:
    """0-based indices of columns that are selected by 1-based index."""
    count = len(table.first)
    for role, name in columns:
        if isinstance(name, int) and name > count:
            fix = f"set data.{role}_column to at most {count}" if role else ""
            raise DataError(file_location(table.path, 1), f"no column {name}: the table has {count} columns", fix)
    return [int(name) - 1 for _, name in columns]


def by_name(table: OpenTable, columns: Sequence[ColumnSpec]) -> list[int]:
    """0-based indices of columns that are selected by their names in the header."""
    header = table.first
    for role, name in columns:
        if (count := header.count(str(name))) > 1:
            raise DataError(file_location(table.path, 1), f"{count} columns are named {name!r}", "rename all but one")
        if name not in header:
            raise missing_column(table, str(name), role)
    return [header.index(str(name)) for _, name in columns]


def missing_column(table: OpenTable, name: str, role: str) -> DataError:
    """The error for a header without a column (see ColumnSpec)."""
    problem, names = f"no column {name!r}", preview_cells(table.first)
    if fix := table.delimiter_fix():
        return DataError(file_location(table.path, 1), f"{problem} in the header {table.describe_first()}", fix)
    fix = available(name, names)
    if role and len(names) <= MAX_LISTED:
        fix = f"set data.{role}_column to one of: {', '.join(names)}"
    return DataError(file_location(table.path, 1), problem, fix)


# ---- header detection

PEEK_ROWS = 100  # rows that are compared with the first line
MIN_ROWS = 10  # for a reliable comparison
_NAME = re.compile(r"[^\W\d][\w-]*(?: [\w-]+){0,2}")
_NUMBER = re.compile(r"[-+]?[0-9.,]+%?")
_PARTS = re.compile("[ _-]+")
# fmt: off
COLUMN_WORDS = frozenset((  # frequent in column names, and rare as labels or texts
    "id", "idx", "index", "text", "label", "labels", "class", "category", "sentiment", "polarity", "review", "reviews",
    "sentence", "tweet", "comment", "message", "content", "body", "document", "target", "score", "rating", "stars", "topic",
    "tag", "intent", "emotion", "annotation", "gold", "split", "date", "timestamp", "user", "author", "url", "title",
    "description", "v1", "v2",
))
# fmt: on


def _has_digit(cell: str) -> bool:
    return any(map(str.isdigit, cell))


def looks_like_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first line looks like column names: no cell is repeated in its column, and the words are typical of column
    names or differ from the rows below."""
    names = [cell.strip() for cell in first]
    if len(set(names)) < len(names) or not all(len(name) <= 40 and _NAME.fullmatch(name) for name in names):
        return False
    below = [[row[index].strip() for row in rows if len(row) == len(first)] for index in range(len(first))]
    if not below[0] or any(name in column for name, column in zip(names, below, strict=True)):
        return False
    num_typical = sum(any(part in COLUMN_WORDS for part in _PARTS.split(name.lower())) for name in names)
    if 2 * num_typical >= len(names) and num_typical > len(names) - 2:
        return True
    if len(below[0]) < MIN_ROWS:
        return False
    if any(not _has_digit(name) and all(map(_has_digit, column)) for name, column in zip(names, below, strict=True)):
        return True
    has_numbers = any(all(map(_NUMBER.fullmatch, column)) for column in below)
    mean_words = max(sum(len(cell.split()) for cell in column) / len(column) for column in below)
    return has_numbers and mean_words > 3 * max(len(name.split()) for name in names)


def _unknown_header(path: Path, first: Sequence[str], columns: Sequence[ColumnSpec]) -> DataError:
    names = " and ".join(repr(name) for _, name in columns)
    options = " and ".join(f"data.{role}_column" for role, _ in columns)
    indices = " and ".join(str(index) for index in range(1, len(columns) + 1))
    return DataError(
        file_location(path, 1),
        f"no columns {names} in the header {', '.join(preview_cells(first))}",
        f"set {options}, to {indices} if this line is not a header",
    )


def has_names(first: Sequence[str], columns: Sequence[ColumnSpec]) -> bool:
    """Whether the first line contains one of the names, in upper or lower case. Then it is a header: as a row, it would have a
    column name as its label."""
    return bool({cell.strip().lower() for cell in first} & {name for _, name in columns})


def _column_indices(table: OpenTable, columns: Sequence[ColumnSpec]) -> tuple[list[int], bool]:
    """0-based indices of the columns, and whether the first line is a header."""
    path, first = table.path, table.first
    if any(isinstance(name, int) for _, name in columns):
        return by_index(table, columns), False
    if tuple(columns) != DEFAULT_COLUMNS or has_names(first, columns):
        return by_name(table, columns), True
    if len(first) < len(columns):
        raise table.wrong_column_count(1, first, f"at least {len(columns)}")
    if looks_like_header(first, table.peek(PEEK_ROWS)):
        raise _unknown_header(path, first, columns)
    return list(range(len(columns))), False


def _read_table(
    path: Path, columns: Sequence[ColumnSpec], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[Cell]]]:
    table = open_table(path, options, summary)
    indices, has_header = _column_indices(table, columns)
    if has_header:
        summary.columns = tuple(table.first)
    else:
        summary.notes.append(no_header_note(table, columns, indices))
        yield 1, [table.first[index] for index in indices]
    for line, cells in table.rows():
        yield line, [cells[index] for index in indices]


def no_header_note(table: OpenTable, columns: Sequence[ColumnSpec], indices: Sequence[int]) -> str:
    roles = ", ".join(f"{role} is column {index + 1}" for (role, _), index in zip(columns, indices, strict=True))
    return f"{table.path.name}: no header; {roles} of {len(table.first)}"


# ---- JSON


def _label(value: Any, where: str) -> str | None:
    """The text of a label in JSON: a string, an integer or a boolean; None for other types."""
    if isinstance(value, int):
        return json.dumps(value)
    return check_text(value, where) if isinstance(value, str) else None


def index_in_objects(path: Path, role: str, index: int) -> DataError:
    """The error for a column of objects that is selected by index."""
    names = "column names" if file_format(path) == "parquet" else "keys"
    return DataError(path, f"has {names}, but data.{role}_column is {index}", f"set data.{role}_column to a name")


def _read_labels(row: dict[str, Any], key: str, where: str) -> Cell:
    value = get_value(row, key, where) if has_key(row, key) else None
    location = f"{where}: {key!r}"
    labels = [_label(inner, location) for inner in value] if isinstance(value, list) else [_label(value, location)]
    valid = [label for label in labels if label is not None]
    if len(valid) == len(labels):
        return valid if isinstance(value, list) else valid[0]
    if isinstance(value, list):
        raise DataError(where, f"expected a list of strings or integers as {key!r}", "write labels as strings")
    return get_string(row, key, where)


def _read_objects(
    path: Path, columns: Sequence[ColumnSpec], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[Cell]]]:
    for role, name in columns:
        if isinstance(name, int):
            raise index_in_objects(path, role, name)
    keys = [str(name) for _, name in columns]
    for number, row in read_objects(path, keys, options.encoding, summary):
        where = file_location(path, number)
        summary.columns = summary.columns or tuple(row)
        yield number, [_read_labels(row, keys[0], where), *(get_string(row, key, where) for key in keys[1:])]


def read_columns(
    path: Path, columns: Sequence[ColumnSpec], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[Cell]]]:
    """The line where each row starts, from 1, and the cells of `columns`. The first column has the labels.

    If the columns are the default ones and the first line has none of their names, the file has no header, and its first
    columns are read.
    """
    read = _read_objects if file_format(path) in OBJECT_FORMATS else _read_table
    count = 0
    for row in read(path, columns, options, summary):
        count += 1
        yield row
    if not count:
        raise DataError(path, "no examples below the header")
