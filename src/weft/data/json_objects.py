"""Objects of JSON (.jsonl, .json) and of Parquet, with the line or row where each starts. All comes through the gate.

JSONL has one object a line, and so has a .json file unless it is a list of objects. A row of Parquet is an object whose keys
are its columns; numbers, dates and truth values in it are texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.table_rows import kind_of, preview_cells
from weft.data.workbooks import read_parquet
from weft.errors import DataError, suggest
from weft.text.reading import FileSummary, RawLine, check_text, read_lines

JSON_KINDS = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", bool: "a truth value"}
JSON_KINDS |= {bytes: "binary data"}
_SPACE = re.compile(r"[ \t\n\r]*")


class Value(NamedTuple):
    """A JSON value, where it starts, from 1, and how it stands in its file."""

    line: int
    value: Any  # a DataError where it is none
    raw: str
    end: str = "\n"  # behind it


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
    return DataError(path, f"line {line} is not JSON: {what}", "a .json file is a list of objects, or an object a line")


def json_values(path: Path, lines: Iterator[RawLine], summary: FileSummary) -> Iterator[Value]:
    """What the lines of a .jsonl or .json hold: the members of a list, or a value a line; blank lines are counted."""
    for number, (line, end, _) in enumerate(lines, 1):
        if kind_of(path) == "json" and line.lstrip().startswith("["):
            text = "\n".join([line, *(one.text for one in lines)])
            yield from (one._replace(line=one.line + number - 1) for one in _listed(path, text))
            return
        if not line.strip():
            summary.blank += 1
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            value = DataError(path, f"line {number} is not JSON: {error}", "JSONL has one object a line")
        yield Value(number, value, line, end)


def read_objects(
    path: Path, keys: Sequence[str], encoding: str, summary: FileSummary, *, others: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a .jsonl or .json, or the rows of a .parquet, which have these keys, and perhaps the others, with their
    places, from 1."""
    empty = True
    if kind_of(path) == "parquet":
        for number, row, _ in read_parquet(path, keys, others, summary):
            empty = False
            yield number, row
    else:
        for line, value, _, _ in json_values(path, map(RawLine, read_lines(path, encoding, summary)), summary):
            empty = False
            yield line, as_object(value, keys, f"{path}: line {line}")
    if empty:
        what = "has no rows" if kind_of(path) == "parquet" else "is an empty list"
        raise DataError(path, f"{what}", "give a file with examples in it")


def as_object(value: Any, keys: Sequence[str], where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, DataError):
        raise value
    *others, last = map(repr, keys)
    names = f"{', '.join(others)} and {last}" if others else last
    raise DataError("", f"{where} is {JSON_KINDS.get(type(value), 'null')}, not an object with {names}")


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
        raise DataError("", f"{where} has no key {name!r}", suggest(name, preview_cells(list(_keys(value)))))
    return found[0]


def field_of(value: dict[str, Any], name: str, where: str) -> str:
    """The text that a key holds."""
    text = value_of(value, name, where)
    if isinstance(text, dict) and text:
        inner = ", ".join(preview_cells([f"{name}.{key}" for key in text]))
        raise DataError(f"{where} has an object as {name!r}, not a string; name a key inside it", f"{inner}")
    if not isinstance(text, str):
        raise DataError("", f"{where} has {JSON_KINDS.get(type(text), 'null')} as {name!r}, not a string", "put it in quotes")
    return check_text(text, f"{where}, {name!r}")
