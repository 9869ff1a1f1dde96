"""Some columns of a table, row by row: by the names of its header or keys, or by place, from 1."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.json_objects import field_of, has_key, read_objects, value_of
from weft.data.table_rows import OBJECTS, OpenTable, TableOptions, kind_of, numbered, open_table, place_of, preview_cells
from weft.errors import DataError, suggest
from weft.text.reading import FileSummary, check_text

Name = str | int
Cell = str | list[str]  # only a key of JSONL may hold several


class WantedColumn(NamedTuple):
    """A column, and the option that names it, "" where none does."""

    option: str
    name: Name


DEFAULT_NAMES = (WantedColumn("label", "label"), WantedColumn("text", "text"))


def by_index(table: OpenTable, wanted_columns: Sequence[WantedColumn]) -> list[int]:
    place, count = place_of(table.path, 1), len(table.first)
    for option, name in wanted_columns:
        if isinstance(name, int) and name > count:
            raise DataError("", f"{place} has {count} columns, so there is no column {name}, which data.{option} names")
    return [int(name) - 1 for _, name in wanted_columns]


def by_name(table: OpenTable, wanted_columns: Sequence[WantedColumn]) -> list[int]:
    place, first = place_of(table.path, 1), table.first
    for option, name in wanted_columns:
        if first.count(str(name)) > 1:
            raise DataError("", f"{place}, its header, has {first.count(str(name))} columns {name!r}", "rename all but one")
        if name not in first:
            raise no_column(table, str(name), option)
    return [first.index(str(name)) for _, name in wanted_columns]


def no_column(table: OpenTable, name: str, option: str) -> DataError:
    """What is wrong with a header that lacks a column; `option` names it, "" where none does."""
    told = f", which data.{option} names" if option else ""
    place, fix = place_of(table.path, 1), table.one_column()
    if fix:
        return DataError(f"{place}, its header, has no column {name!r}{told}", f"{table.separated(table.first)}{fix}")
    return DataError("", f"{place}, its header, has no column {name!r}{told}", suggest(name, preview_cells(table.first)))


# ---- whether the first line is a header

PEEK_ROWS = 100  # rows that are looked at
MIN_ROWS = 10  # of them, before their looks are believed
_NAME = re.compile(r"[^\W\d][\w-]*(?: [\w-]+){0,2}")
_NUMBER = re.compile(r"[-+]?[0-9.,]+%?")
_PARTS = re.compile("[ _-]+")
# fmt: off
COLUMN_WORDS = frozenset((  # that columns are called by, and hardly ever labels or texts
    "id", "idx", "index", "text", "label", "labels", "class", "category", "sentiment", "polarity", "review", "reviews",
    "sentence", "tweet", "comment", "message", "content", "body", "document", "target", "score", "rating", "stars", "topic",
    "tag", "intent", "emotion", "annotation", "gold", "split", "date", "timestamp", "user", "author", "url", "title",
    "description", "v1", "v2",
))
# fmt: on


def looks_like_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first line is one of names, by itself and by the rows below it: no cell of it comes again in its column, and
    its words are such as columns have, or it is unlike what stands below."""
    names = [cell.strip() for cell in first]
    if len(set(names)) < len(names) or not all(len(name) <= 40 and _NAME.fullmatch(name) for name in names):
        return False
    below = [[row[at].strip() for row in rows if len(row) == len(first)] for at in range(len(first))]
    if not below[0] or any(name in column for name, column in zip(names, below, strict=True)):
        return False
    known = sum(any(part in COLUMN_WORDS for part in _PARTS.split(name.lower())) for name in names)
    if 2 * known >= len(names) and known > len(names) - 2:
        return True
    numbers = any(all(map(_NUMBER.fullmatch, column)) for column in below)
    words = max(sum(len(cell.split()) for cell in column) / len(column) for column in below)
    return len(below[0]) >= MIN_ROWS and numbers and words > 3 * max(len(name.split()) for name in names)


def _unnamed(path: Path, first: Sequence[str], wanted_columns: Sequence[WantedColumn]) -> DataError:
    names = " and ".join(repr(name) for _, name in wanted_columns)
    options = " and ".join(f"data.{option}" for option, _ in wanted_columns)
    places = " and ".join(str(at) for at in range(1, len(wanted_columns) + 1))
    return DataError(
        f"{place_of(path, 1)} looks like a header without the columns {names}",
        f"{', '.join(preview_cells(first))}",
        f"set {options} to two of them, or to places, {places}, if it is no header",
    )


def has_names(first: Sequence[str], wanted_columns: Sequence[WantedColumn]) -> bool:
    """Whether a first line has a name that is wanted, in whatever letters: read as a row it would be a label that nobody
    meant."""
    return bool({cell.strip().lower() for cell in first} & {name for _, name in wanted_columns})


def _places(table: OpenTable, wanted_columns: Sequence[WantedColumn]) -> tuple[list[int], bool]:
    """Where the columns stand, from 0, and whether the first line is a header."""
    path, first = table.path, table.first
    if any(isinstance(name, int) for _, name in wanted_columns):
        return by_index(table, wanted_columns), False
    if tuple(wanted_columns) != DEFAULT_NAMES or has_names(first, wanted_columns):
        return by_name(table, wanted_columns), True
    if len(first) < len(wanted_columns):
        raise table.wrong_column_count(1, first, f"{len(wanted_columns)} or more")
    if looks_like_header(first, table.peek(PEEK_ROWS)):
        raise _unnamed(path, first, wanted_columns)
    return list(range(len(wanted_columns))), False


def _read_table(
    path: Path, wanted_columns: Sequence[WantedColumn], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[Cell]]]:
    table = open_table(path, options, summary)
    places, header = _places(table, wanted_columns)
    if header:
        summary.columns = tuple(table.first)
    else:
        told = ", ".join(f"{option} is column {place + 1}" for (option, _), place in zip(wanted_columns, places, strict=True))
        summary.notes.append(f"{path.name}: {numbered(path, 1)} is no header: {told} of {len(table.first)}")
        yield 1, [table.first[place] for place in places]
    for line, cells in table.rows():
        yield line, [cells[place] for place in places]


# ---- JSON


def _name(value: Any, where: str) -> str | None:
    """A label as JSON may have it: a text, a number, true or false; None for anything else."""
    if isinstance(value, int):
        return json.dumps(value)
    return check_text(value, where) if isinstance(value, str) else None


def by_number(path: Path, option: str, name: int) -> DataError:
    """What is wrong with a column of objects that is given by its place."""
    what = "has columns with names" if kind_of(path) == "parquet" else "has keys and no columns"
    named = "column" if kind_of(path) == "parquet" else "key"
    return DataError(path, f"{what}, but data.{option} = {name}", f'name a {named}, data.{option} = "..."')


def _names(row: dict[str, Any], key: str, where: str) -> Cell:
    value, place = value_of(row, key, where) if has_key(row, key) else None, f"{where}, {key!r}"
    names = [_name(inner, place) for inner in value] if isinstance(value, list) else [_name(value, place)]
    known = [name for name in names if name is not None]
    if len(known) == len(names):
        return known if isinstance(value, list) else known[0]
    if isinstance(value, list):
        raise DataError(
            "", f"{where} has a list as {key!r} that holds more than strings and whole numbers", "write labels as strings"
        )
    return field_of(row, key, where)


def _read_objects(
    path: Path, wanted_columns: Sequence[WantedColumn], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[Cell]]]:
    for option, name in wanted_columns:
        if isinstance(name, int):
            raise by_number(path, option, name)
    keys = [str(name) for _, name in wanted_columns]
    for number, row in read_objects(path, keys, options.encoding, summary):
        where = place_of(path, number)
        summary.columns = summary.columns or tuple(row)
        yield number, [_names(row, keys[0], where), *(field_of(row, key, where) for key in keys[1:])]


def read_columns(
    path: Path, wanted_columns: Sequence[WantedColumn], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[Cell]]]:
    """The line where each row starts, from 1, and the cells of the columns that are wanted; the first of them holds labels.

    Where all names are the usual ones and the first line has none of them, it is no header: the first columns are meant.
    """
    read = _read_objects if kind_of(path) in OBJECTS else _read_table
    count = 0
    for row in read(path, wanted_columns, options, summary):
        count += 1
        yield row
    if not count:
        raise DataError(path, "has a header and nothing below it", "give a file with examples in it")
