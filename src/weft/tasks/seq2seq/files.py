"""Reads pairs from tables, JSON objects or two parallel text files. Text is read and checked by `weft.text.reading`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.data.alignment import first_misalignment
from weft.data.columns import PEEK_ROWS, looks_like_header, missing_column
from weft.data.json_objects import get_string, read_objects
from weft.data.table_rows import OBJECT_FORMATS, OpenTable, TableOptions, file_format, file_location, is_table, open_table
from weft.errors import DataError
from weft.text.reading import FileSummary, read_lines

Columns = tuple[str, str]
DEFAULT_COLUMNS: Columns = ("source", "target")


class Record(NamedTuple):
    source: str
    target: str
    path: Path
    line: int  # line number in the file, from 1


def _refuse_other_case(path: Path, cells: list[str]) -> None:
    """Refuse a header such as 'Source', which would be read as the first pair."""
    names = {cell.strip().lower(): cell for cell in cells}
    if set(DEFAULT_COLUMNS) <= set(names):
        options = " and ".join(f"data.{side}_column = {names[side]!r}" for side in DEFAULT_COLUMNS)
        problem = "the header does not have exactly the names 'source' and 'target'"
        raise DataError(file_location(path, 1), problem, f"rename the columns, or set {options}")


def _header(table: OpenTable, columns: Columns) -> tuple[int, int] | None:
    """The indices of the columns; None if the first line is not a header, and the first two columns are read."""
    path, cells = table.path, table.first
    if columns == DEFAULT_COLUMNS and not set(columns) <= set(cells):
        _refuse_other_case(path, cells)
        return None
    for role, name in zip(DEFAULT_COLUMNS, columns, strict=True):
        if name not in cells:
            raise missing_column(table, name, role)
        if (count := cells.count(name)) > 1:
            raise DataError(file_location(path, 1), f"{count} columns are named {name!r}", "rename all but one")
    return cells.index(columns[0]), cells.index(columns[1])


def _read_table(path: Path, columns: Columns, options: TableOptions, summary: FileSummary) -> Iterator[Record]:
    table = open_table(path, options, summary)
    first = table.first
    indices = _header(table, columns)
    if indices is None and len(first) < 2:
        raise table.wrong_column_count(1, first, "at least 2")
    source, target = indices or (0, 1)
    if indices is None:
        if looks_like_header(first, table.peek(PEEK_ROWS)):
            names = f"data.source_column = {first[0]!r} and data.target_column = {first[1]!r}"
            summary.notes.append(f"{path.name}: the first line looks like a header, but is a pair; set {names} if it is one")
        yield Record(first[0], first[1], path, 1)
    for line, cells in table.rows():
        yield Record(cells[source], cells[target], path, line)


def _read_objects(path: Path, columns: Columns, options: TableOptions, summary: FileSummary) -> Iterator[Record]:
    for number, value in read_objects(path, columns, options.encoding, summary):
        location = file_location(path, number)
        yield Record(get_string(value, columns[0], location), get_string(value, columns[1], location), path, number)


def _different_lengths(paths: Sequence[Path], encoding: str) -> DataError:
    source, target = (np.array([len(line) for line in read_lines(path, encoding)]) for path in paths)
    return DataError(
        paths[0],
        f"has {len(source):,} lines, but {paths[1]} has {len(target):,}",
        f"look for a missing line near line {first_misalignment(source, target) + 1:,}",
    )


def _read_parallel(paths: Sequence[Path], encoding: str, summary: FileSummary) -> Iterator[Record]:
    sides = [read_lines(path, encoding, summary) for path in paths]
    for number, (source, target) in enumerate(zip_longest(*sides), 1):
        if source is None or target is None:
            raise _different_lengths(paths, encoding)
        yield Record(source, target, paths[0], number)


def read_records(paths: Sequence[Path], columns: Columns, options: TableOptions, summary: FileSummary) -> Iterator[Record]:
    """All pairs of the files in order; two files that are not tables are parallel."""
    if not is_table(paths[0], options.delimiter):
        yield from _read_parallel(paths, options.encoding, summary)
        return
    for path in paths:
        read = _read_objects if file_format(path) in OBJECT_FORMATS else _read_table
        count = 0
        for record in read(path, columns, options, summary):
            count += 1
            yield record
        if not count:
            raise DataError(path, "no pairs below the header")
