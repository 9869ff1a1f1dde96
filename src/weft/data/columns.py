"""Some columns of a table (.tsv, .csv, .jsonl), row by row: by the names of its header or keys, or by place, from 1.

Tables are read as those of pairs are: TSV has no quoting, CSV is read strictly, all rows have as many columns as the first,
blank lines are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.pair_files import JSON_KINDS, brief, field_of, json_lines, kind_of, misshapen, table_rows
from weft.errors import DataError, nearest
from weft.text.gate import Seen, clean

Name = str | int
Cell = str | list[str]  # only a key of JSONL may hold several


class Wanted(NamedTuple):
    """A column, and the option that names it."""

    option: str
    name: Name


USUAL = (Wanted("label", "label"), Wanted("text", "text"))


def _by_place(path: Path, first: list[str], wanted: Sequence[Wanted]) -> list[int]:
    for option, name in wanted:
        if isinstance(name, int) and name > len(first):
            raise DataError(f"{path}: line 1 has {len(first)} columns, so there is no column {name}, which data.{option} names")
    return [int(name) - 1 for _, name in wanted]


def _by_name(path: Path, first: list[str], wanted: Sequence[Wanted]) -> list[int]:
    for option, name in wanted:
        if first.count(str(name)) > 1:
            raise DataError(f"{path}: line 1, its header, has {first.count(str(name))} columns {name!r}; rename all but one")
        if name not in first:
            raise DataError(
                f"{path}: line 1, its header, has no column {name!r}, which data.{option} names"
                f"{nearest(str(name), brief(first))}"
            )
    return [first.index(str(name)) for _, name in wanted]


def _places(path: Path, first: list[str], wanted: Sequence[Wanted]) -> tuple[list[int], bool]:
    """Where the columns stand, from 0, and whether the first line is a header."""
    if any(isinstance(name, int) for _, name in wanted):
        return _by_place(path, first, wanted), False
    # one such name, in whatever letters, makes a header: read as a row it would be a label that nobody meant
    if tuple(wanted) != USUAL or {cell.strip().lower() for cell in first} & {name for _, name in wanted}:
        return _by_name(path, first, wanted), True
    if len(first) < len(wanted):
        raise misshapen(path, 1, first, f"{len(wanted)} or more")
    return list(range(len(wanted))), False


def _read_table(path: Path, wanted: Sequence[Wanted], encoding: str, seen: Seen) -> Iterator[tuple[int, list[Cell]]]:
    rows = table_rows(path, encoding, seen)
    _, first = next(rows)
    places, header = _places(path, first, wanted)
    if not header:
        told = ", ".join(f"{option} is column {place + 1}" for (option, _), place in zip(wanted, places, strict=True))
        seen.notes.append(f"{path.name}: line 1 is no header: {told} of {len(first)}")
        yield 1, [first[place] for place in places]
    for line, cells in rows:
        if len(cells) != len(first):
            raise misshapen(path, line, cells, f"{len(first)} as line 1 has")
        yield line, [cells[place] for place in places]


def _name(value: Any, where: str) -> str | None:
    """A label as JSON may have it: a text, a number, true or false; None for anything else."""
    if isinstance(value, int):
        return json.dumps(value)
    return clean(value, where) if isinstance(value, str) else None


def _names(row: dict[str, Any], key: str, where: str) -> Cell:
    value, place = row.get(key), f"{where}, {key!r}"
    names = [_name(inner, place) for inner in value] if isinstance(value, list) else [_name(value, place)]
    known = [name for name in names if name is not None]
    if len(known) == len(names):
        return known if isinstance(value, list) else known[0]
    if isinstance(value, list):
        raise DataError(
            f"{where} has a list as {key!r} that holds more than strings and whole numbers; write labels as strings"
        )
    return field_of(row, key, where)


def _read_jsonl(path: Path, wanted: Sequence[Wanted], encoding: str, seen: Seen) -> Iterator[tuple[int, list[Cell]]]:
    for option, name in wanted:
        if isinstance(name, int):
            raise DataError(f'{path}: has keys and no columns, but data.{option} = {name}; name a key, data.{option} = "..."')
    keys = [str(name) for _, name in wanted]
    for number, row in json_lines(path, encoding, seen):
        where = f"{path}: line {number}"
        if not isinstance(row, dict):
            raise DataError(
                f"{where} is {JSON_KINDS.get(type(row), 'null')}, not an object with {' and '.join(map(repr, keys))}"
            )
        yield number, [_names(row, keys[0], where), *(field_of(row, key, where) for key in keys[1:])]


def read_columns(path: Path, wanted: Sequence[Wanted], encoding: str, seen: Seen) -> Iterator[tuple[int, list[Cell]]]:
    """The line where each row starts, from 1, and the cells of the columns that are wanted; the first of them holds labels.

    Where all names are the usual ones and the first line has none of them, it is no header: the first columns are meant.
    """
    read = _read_jsonl if kind_of(path) == "jsonl" else _read_table
    count = 0
    for row in read(path, wanted, encoding, seen):
        count += 1
        yield row
    if not count:
        raise DataError(f"{path}: has a header and nothing below it; give a file with examples in it")
