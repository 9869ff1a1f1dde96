"""Files of pairs, record by record: tables (.tsv, .csv, .jsonl), or two parallel texts. All of it comes through the gate.

TSV has no quoting: a line is split at its tabs. CSV is what Python's csv module reads, strictly: a quoted field may hold
commas and newlines. JSONL has one object a line. Every row of a table must have as many columns as its first one:
a stray tab would else move the target elsewhere, and nobody would notice. Blank lines are no rows, and are skipped.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.data.alignment import first_slip
from weft.errors import DataError, nearest
from weft.text.gate import Seen, clean, read_lines, shown
from weft.text.unpack import PACKED

Columns = tuple[str, str]
DEFAULT: Columns = ("source", "target")
JSON_KINDS = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", bool: "a truth value"}


class Record(NamedTuple):
    source: str
    target: str
    path: Path
    line: int  # where it starts in that file, from 1


Rows = Iterator[tuple[int, list[str]]]


def kind_of(path: Path) -> str:
    """'tsv', 'csv' or 'jsonl' by the name, packed or not; 'text' for all else."""
    name = path.with_suffix("") if path.suffix in PACKED else path
    kind = name.suffix.lower().removeprefix(".")
    return kind if kind in ("tsv", "csv", "jsonl") else "text"


def _tsv(path: Path, encoding: str, seen: Seen) -> Rows:
    for number, line in enumerate(read_lines(path, encoding, seen), 1):
        yield number, line.split("\t")


def _csv(path: Path, encoding: str, seen: Seen) -> Rows:
    reader = csv.reader((line + "\n" for line in read_lines(path, encoding, seen)), strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "field limit" in str(error):
                raise DataError(
                    f"{path}: line {start} has a field of more than {csv.field_size_limit():,} characters, too long for CSV;"
                    " is a quote not closed? if it is that long, write .tsv or .jsonl"
                ) from None
            raise DataError(
                f"{path}: line {start} is not CSV: {error}; is a quote not closed, or not doubled? (.tsv has no quotes)"
            ) from None
        yield start, cells


TABLES: dict[str, Callable[[Path, str, Seen], Rows]] = {"tsv": _tsv, "csv": _csv}


def table_rows(path: Path, encoding: str, seen: Seen) -> Rows:
    """The rows of a .tsv or .csv, and the line where each starts, from 1."""
    for line, cells in TABLES[kind_of(path)](path, encoding, seen):
        if len(cells) > 1 or "".join(cells).strip(" "):
            yield line, cells
        elif line == 1:
            raise DataError(f"{path}: line 1 is blank; a table begins with its header, or with its first row; take it out")
        else:
            seen.blank += 1


def json_lines(path: Path, encoding: str, seen: Seen) -> Iterator[tuple[int, Any]]:
    """What the lines of a .jsonl hold, and their numbers, from 1."""
    for number, line in enumerate(read_lines(path, encoding, seen), 1):
        if not line.strip():
            seen.blank += 1
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is not JSON: {error}; JSONL has one object a line") from None
        yield number, value


def brief(cells: Sequence[str]) -> list[str]:
    return [shown(cell, 40) for cell in cells]


def _refuse_capitals(path: Path, cells: list[str]) -> None:
    """A header in other letters would be read as the first pair."""
    plain = {cell.strip().lower(): cell for cell in cells}
    if set(DEFAULT) <= set(plain):
        names = " and ".join(f"data.{name} = {plain[name]!r}" for name in DEFAULT)
        raise DataError(f"{path}: line 1 looks like a header, but not like 'source' and 'target'; set {names}, or rename them")


def _header(path: Path, cells: list[str], columns: Columns) -> tuple[int, int] | None:
    """Where the columns stand; None if the first line is no header, and pairs are the first two columns."""
    if columns == DEFAULT and not set(columns) <= set(cells):
        _refuse_capitals(path, cells)
        return None
    for name in columns:
        if name not in cells:
            raise DataError(f"{path}: line 1, its header, has no column {name!r}{nearest(name, brief(cells))}")
        if cells.count(name) > 1:
            raise DataError(f"{path}: line 1, its header, has {cells.count(name)} columns {name!r}; rename all but one")
    return cells.index(columns[0]), cells.index(columns[1])


def misshapen(path: Path, line: int, cells: list[str], wanted: str) -> DataError:
    count = f"{len(cells)} {'column' if len(cells) == 1 else 'columns'}"
    found = ", ".join(map(repr, brief(cells)))
    between = "a tab" if kind_of(path) == "tsv" else "a comma"
    return DataError(f"{path}: line {line} has {count}, not {wanted}: {found}; columns are separated by {between}")


def _read_table(path: Path, columns: Columns, encoding: str, seen: Seen) -> Iterator[Record]:
    rows = table_rows(path, encoding, seen)
    _, first = next(rows)
    places = _header(path, first, columns)
    if places is None and len(first) < 2:
        raise misshapen(path, 1, first, "2 or more")
    source, target = places or (0, 1)
    if places is None:
        yield Record(first[0], first[1], path, 1)
    for line, cells in rows:
        if len(cells) != len(first):
            raise misshapen(path, line, cells, f"{len(first)} as line 1 has")
        yield Record(cells[source], cells[target], path, line)


def field_of(value: dict[str, Any], name: str, where: str) -> str:
    if name not in value:
        raise DataError(f"{where} has no key {name!r}{nearest(name, brief(list(value)))}")
    text = value[name]
    if not isinstance(text, str):
        raise DataError(f"{where} has {JSON_KINDS.get(type(text), 'null')} as {name!r}, not a string; put it in quotes")
    return clean(text, f"{where}, {name!r}")


def _read_jsonl(path: Path, columns: Columns, encoding: str, seen: Seen) -> Iterator[Record]:
    for number, value in json_lines(path, encoding, seen):
        where = f"{path}: line {number}"
        if not isinstance(value, dict):
            raise DataError(
                f"{where} is {JSON_KINDS.get(type(value), 'null')}, not an object with {' and '.join(map(repr, columns))}"
            )
        yield Record(field_of(value, columns[0], where), field_of(value, columns[1], where), path, number)


def _unequal(paths: Sequence[Path], encoding: str) -> DataError:
    lengths = [np.array([len(line) for line in read_lines(path, encoding)]) for path in paths]
    counts = [f"{path} has {len(found):,} lines" for path, found in zip(paths, lengths, strict=True)]
    return DataError(
        f"{' and '.join(counts)}: parallel files have equally many;"
        f" by their lengths they part at about line {first_slip(lengths[0], lengths[1]) + 1:,}, so look there first"
    )


def _read_parallel(paths: Sequence[Path], encoding: str, seen: Seen) -> Iterator[Record]:
    sides = [read_lines(path, encoding, seen) for path in paths]
    for number, (source, target) in enumerate(zip_longest(*sides), 1):
        if source is None or target is None:
            raise _unequal(paths, encoding)
        yield Record(source, target, paths[0], number)


def read_records(paths: Sequence[Path], columns: Columns, encoding: str, seen: Seen) -> Iterator[Record]:
    """Every pair of the files, in order; two that are no tables are parallel."""
    if kind_of(paths[0]) == "text":
        yield from _read_parallel(paths, encoding, seen)
        return
    for path in paths:
        read = _read_jsonl if kind_of(path) == "jsonl" else _read_table
        count = 0
        for record in read(path, columns, encoding, seen):
            count += 1
            yield record
        if not count:
            raise DataError(f"{path}: has a header and nothing below it; give a file with pairs in it")
