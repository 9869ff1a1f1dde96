"""Files of pairs, record by record: tables, objects, or two parallel texts. All comes through the gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.data.alignment import first_misalignment
from weft.data.columns import no_column
from weft.data.json_objects import field_of, read_objects
from weft.data.table_rows import OBJECT_FORMATS, OpenTable, TableOptions, kind_of, open_table, file_location
from weft.errors import DataError
from weft.text.reading import FileSummary, read_lines

Columns = tuple[str, str]
DEFAULT: Columns = ("source", "target")


class Record(NamedTuple):
    source: str
    target: str
    path: Path
    line: int  # where it starts in that file, from 1


def _refuse_capitals(path: Path, cells: list[str]) -> None:
    """A header in other letters would be read as the first pair."""
    plain = {cell.strip().lower(): cell for cell in cells}
    if set(DEFAULT) <= set(plain):
        place = file_location(path, 1)
        names = " and ".join(f"data.{name} = {plain[name]!r}" for name in DEFAULT)
        raise DataError("", f"{place} looks like a header, but not like 'source' and 'target'", f"set {names}, or rename them")


def _header(config: OpenTable, columns: Columns) -> tuple[int, int] | None:
    """Where the columns stand; None if the first line is no header, and pairs are the first two columns."""
    path, cells = config.path, config.first
    if columns == DEFAULT and not set(columns) <= set(cells):
        _refuse_capitals(path, cells)
        return None
    for name in columns:
        if name not in cells:
            raise no_column(config, name, "")
        if cells.count(name) > 1:
            raise DataError(
                "", f"{file_location(path, 1)}, its header, has {cells.count(name)} columns {name!r}", "rename all but one"
            )
    return cells.index(columns[0]), cells.index(columns[1])


def _read_table(path: Path, columns: Columns, options: TableOptions, seen: FileSummary) -> Iterator[Record]:
    config = open_table(path, options, seen)
    first = config.first
    places = _header(config, columns)
    if places is None and len(first) < 2:
        raise config.wrong_column_count(1, first, "2 or more")
    source, target = places or (0, 1)
    if places is None:
        yield Record(first[0], first[1], path, 1)
    for line, cells in config.rows():
        yield Record(cells[source], cells[target], path, line)


def _read_objects(path: Path, columns: Columns, options: TableOptions, seen: FileSummary) -> Iterator[Record]:
    for number, value in read_objects(path, columns, options.encoding, seen):
        where = file_location(path, number)
        yield Record(field_of(value, columns[0], where), field_of(value, columns[1], where), path, number)


def _unequal(paths: Sequence[Path], encoding: str) -> DataError:
    lengths = [np.array([len(line) for line in read_lines(path, encoding)]) for path in paths]
    counts = [f"{path} has {len(found):,} lines" for path, found in zip(paths, lengths, strict=True)]
    return DataError(
        " and ".join(counts),
        "parallel files have equally many",
        f"by their lengths they part at about line {first_misalignment(lengths[0], lengths[1]) + 1:,}, so look there first",
    )


def _read_parallel(paths: Sequence[Path], encoding: str, seen: FileSummary) -> Iterator[Record]:
    sides = [read_lines(path, encoding, seen) for path in paths]
    for number, (source, target) in enumerate(zip_longest(*sides), 1):
        if source is None or target is None:
            raise _unequal(paths, encoding)
        yield Record(source, target, paths[0], number)


def read_records(paths: Sequence[Path], columns: Columns, options: TableOptions, seen: FileSummary) -> Iterator[Record]:
    """Every pair of the files, in order; two that are no tables are parallel."""
    if kind_of(paths[0]) == "text":
        yield from _read_parallel(paths, options.encoding, seen)
        return
    for path in paths:
        read = _read_objects if kind_of(path) in OBJECT_FORMATS else _read_table
        count = 0
        for record in read(path, columns, options, seen):
            count += 1
            yield record
        if not count:
            raise DataError(path, "has a header and nothing below it", "give a file with pairs in it")
