"""Rows of tables (.tsv, .csv) and objects of JSON (.jsonl, .json), with the line where each starts. All comes through the gate.

TSV has no quoting: a line is split at its tabs. CSV is what Python's csv module reads, strictly: a quoted field may hold
commas and newlines; what separates its columns is the comma, the semicolon or the tab that its first line has. JSONL has one
object a line, and so has a .json file unless it is a list of objects. Every row of a table must have as many columns as its
first one: a stray tab would else move the target elsewhere, and nobody would notice. Blank lines are no rows, and are skipped.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import DataError, nearest
from weft.text.gate import Seen, clean, read_lines, shown
from weft.text.unpack import PACKED

JSON_KINDS = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", bool: "a truth value"}
JSON = ("jsonl", "json")
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
_QUOTED = re.compile('"(?:[^"]|"")*"?')
_SPACE = re.compile(r"[ \t\n\r]*")


def kind_of(path: Path) -> str:
    """'tsv', 'csv', 'jsonl' or 'json' by the name, packed or not; 'text' for all else."""
    name = path.with_suffix("") if path.suffix in PACKED else path
    kind = name.suffix.lower().removeprefix(".")
    return kind if kind in ("tsv", "csv", *JSON) else "text"


def brief(cells: Sequence[str]) -> list[str]:
    return [shown(cell, 40) for cell in cells]


# ---- tables


class Row(NamedTuple):
    """A row of a table: where it starts, from 1, and how it stands in its file."""

    line: int
    cells: list[str]
    raw: str


def separator_of(path: Path, first: str) -> str:
    """What separates the columns of a table with this first line; in CSV what stands there outside quotes, a comma before all
    else."""
    if kind_of(path) == "tsv":
        return "\t"
    bare = _QUOTED.sub("", first)
    return next((mark for mark in SEPARATORS if mark in bare), ",")


def _tsv(lines: Iterator[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        yield Row(number, line.split("\t"), line)


def _csv(lines: Iterator[str], path: Path, separator: str) -> Iterator[Row]:
    taken: list[str] = []

    def fed() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line + "\n"

    reader = csv.reader(fed(), strict=True, delimiter=separator)
    while True:
        start = reader.line_num + 1
        taken.clear()
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
        yield Row(start, cells, "\n".join(taken))


def split_rows(path: Path, lines: Iterator[str], separator: str) -> Iterator[Row]:
    """The rows of the lines of a table; a blank line is one with a blank cell."""
    return _tsv(lines) if kind_of(path) == "tsv" else _csv(lines, path, separator)


def is_blank(cells: Sequence[str]) -> bool:
    return len(cells) <= 1 and not "".join(cells).strip(" ")


@dataclass
class OpenTable:
    """A table whose first row has been read."""

    path: Path
    separator: str
    begin: Row
    seen: Seen
    _rest: Iterator[Row]

    @property
    def first(self) -> list[str]:
        """The cells of the first row."""
        return self.begin.cells

    def misshapen(self, line: int, cells: Sequence[str], wanted: str) -> DataError:
        return DataError(f"{self.path}: line {line} {misshapen(cells, wanted, self.separator)}")

    def ahead(self, most: int) -> list[list[str]]:
        """The cells of the next rows, which are still to come; blank lines are among them."""
        found = []
        for row in self._rest:
            found.append(row)
            if len(found) == most:
                break
        self._rest = chain(found, self._rest)
        return [row.cells for row in found]

    def filled(self) -> Iterator[Row]:
        """The rows after the first, whatever their columns; blank lines are none."""
        for row in self._rest:
            if is_blank(row.cells):
                self.seen.blank += 1
            else:
                yield row

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """The rows after the first, and the line where each starts; all have as many columns."""
        for line, cells, _ in self.filled():
            if len(cells) != len(self.first):
                raise self.misshapen(line, cells, f"{len(self.first)} as line 1 has")
            yield line, cells


def misshapen(cells: Sequence[str], wanted: str, separator: str) -> str:
    """What is wrong with a row that has too few columns, or too many."""
    count = f"{len(cells)} {'column' if len(cells) == 1 else 'columns'}"
    found = ", ".join(map(repr, brief(cells)))
    return f"has {count}, not {wanted}: {found}; columns are separated by a {SEPARATORS[separator]}"


def open_rows(path: Path, lines: Iterator[str], seen: Seen) -> OpenTable:
    """A .tsv or .csv, whose lines are given, with its first row."""
    begin = next(lines, None)
    if begin is None:
        raise DataError(f"{path}: is empty; give a file with text in it")
    separator = separator_of(path, begin)
    if separator != {"tsv": "\t"}.get(kind_of(path), ","):
        seen.notes.append(f"{path.name}: columns are separated by {SEPARATORS[separator]}s")
    rows = split_rows(path, chain([begin], lines), separator)
    first = next(rows)
    if is_blank(first.cells):
        raise DataError(f"{path}: line 1 is blank; a table begins with its header, or with its first row; take it out")
    return OpenTable(path, separator, first, seen, rows)


def open_table(path: Path, encoding: str, seen: Seen) -> OpenTable:
    """A .tsv or .csv, with its first row."""
    return open_rows(path, read_lines(path, encoding, seen), seen)


# ---- JSON


class Value(NamedTuple):
    """A JSON value, where it starts, from 1, and how it stands in its file."""

    line: int
    value: Any  # a DataError where it is none
    raw: str


def _listed(path: Path, text: str) -> Iterator[Value]:
    """The members of a list, each with its line: those of what `json.loads` gives have none."""
    decoder, line, counted = json.JSONDecoder(), 1, 0
    place, mark = _after(text, _after(text, 0) + 1), ","
    while mark == "," and text[place : place + 1] != "]":
        line, counted = line + text.count("\n", counted, place), place
        try:
            value, stop = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise _no_list(path, text, error.pos, error.msg) from None
        except (ValueError, RecursionError) as error:
            raise _no_list(path, text, place, str(error)) from None
        yield Value(line, value, text[place:stop])
        place = _after(text, stop)
        mark = text[place : place + 1]
        if mark not in (",", "]"):
            raise _no_list(path, text, place, "Expecting ',' delimiter")
        place = _after(text, place + 1) if mark == "," else place
    if _after(text, place + 1) < len(text):
        raise _no_list(path, text, place + 1, "Extra data")


def _after(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _no_list(path: Path, text: str, place: int, what: str) -> DataError:
    line = text.count("\n", 0, place) + 1
    return DataError(f"{path}: line {line} is not JSON: {what}; a .json file is a list of objects, or an object a line")


def json_values(path: Path, lines: Iterator[str], seen: Seen) -> Iterator[Value]:
    """What the lines of a .jsonl or .json hold: the members of a list, or a value a line; blank lines are counted."""
    for number, line in enumerate(lines, 1):
        if kind_of(path) == "json" and line.lstrip().startswith("["):
            yield from (one._replace(line=one.line + number - 1) for one in _listed(path, "\n".join([line, *lines])))
            return
        if not line.strip():
            seen.blank += 1
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            value = DataError(f"{path}: line {number} is not JSON: {error}; JSONL has one object a line")
        yield Value(number, value, line)


def json_objects(path: Path, keys: Sequence[str], encoding: str, seen: Seen) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a .jsonl or .json, which have these keys, and their lines, from 1."""
    empty = True
    for line, value, _ in json_values(path, read_lines(path, encoding, seen), seen):
        empty = False
        yield line, as_object(value, keys, f"{path}: line {line}")
    if empty:
        raise DataError(f"{path}: is an empty list; give a file with examples in it")


def as_object(value: Any, keys: Sequence[str], where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, DataError):
        raise value
    *others, last = map(repr, keys)
    names = f"{', '.join(others)} and {last}" if others else last
    raise DataError(f"{where} is {JSON_KINDS.get(type(value), 'null')}, not an object with {names}")


def _keys(value: dict[str, Any], before: str = "") -> Iterator[str]:
    """The keys of an object, those of the objects in it behind points."""
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _keys(inner, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def _inside(value: Any, name: str) -> list[Any]:
    """What a key holds, or one inside an object by points; an empty list where there is none."""
    if not isinstance(value, dict):
        return []
    if name in value:
        return [value[name]]
    ends = [at for at, mark in enumerate(name) if mark == "."]
    found = (_inside(value.get(name[:at]), name[at + 1 :]) for at in ends)
    return next((inner for inner in found if inner), [])


def has_key(value: dict[str, Any], name: str) -> bool:
    return bool(_inside(value, name))


def value_of(value: dict[str, Any], name: str, where: str) -> Any:
    """What a key holds: `a`, or `a.b` of an object in an object."""
    found = _inside(value, name)
    if not found:
        raise DataError(f"{where} has no key {name!r}{nearest(name, brief(list(_keys(value))))}")
    return found[0]


def field_of(value: dict[str, Any], name: str, where: str) -> str:
    """The text that a key holds."""
    text = value_of(value, name, where)
    if isinstance(text, dict) and text:
        inner = ", ".join(brief([f"{name}.{key}" for key in text]))
        raise DataError(f"{where} has an object as {name!r}, not a string; name a key inside it: {inner}")
    if not isinstance(text, str):
        raise DataError(f"{where} has {JSON_KINDS.get(type(text), 'null')} as {name!r}, not a string; put it in quotes")
    return clean(text, f"{where}, {name!r}")
