"""Reads JSON objects (.jsonl, .json) and rows of Parquet files, with the line or row where each starts. `weft.text.reading`
reads and checks the text.

A .jsonl file has one object per line. A .json file is a list of objects, or has one object per line. A row of Parquet is an
object whose keys are the columns; its numbers, dates and booleans become text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.table_rows import file_format, file_location, preview_cells
from weft.data.workbooks import available, read_parquet
from weft.errors import DataError
from weft.text.reading import FileSummary, RawLine, check_text, read_lines

JSON_TYPES = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
JSON_TYPES |= {bytes: "binary data"}
_SPACE = re.compile(r"[ \t\n\r]*")


class Value(NamedTuple):
    """A JSON value in a file."""

    line: int  # first line, from 1
    value: Any  # a DataError if it is invalid
    raw: str  # unchanged text of the file
    end: str = "\n"  # line ending


def _list_items(path: Path, text: str) -> Iterator[Value]:
    """The items of a JSON list with their lines, which `json.loads` does not report."""
    decoder, line, line_position = json.JSONDecoder(), 1, 0  # `line` is the line of `line_position`
    position, separator = _skip_space(text, _skip_space(text, 0) + 1), ","
    while separator == "," and text[position : position + 1] != "]":
        line, line_position = line + text.count("\n", line_position, position), position
        try:
            value, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise _invalid_list(path, text, error.pos, error.msg) from None
        except (ValueError, RecursionError) as error:
            raise _invalid_list(path, text, position, str(error)) from None
        yield Value(line, value, text[position:end])
        position = _skip_space(text, end)
        separator = text[position : position + 1]
        if separator not in (",", "]"):
            raise _invalid_list(path, text, position, "Expecting ',' delimiter")
        position = _skip_space(text, position + 1) if separator == "," else position
    if _skip_space(text, position + 1) < len(text):
        raise _invalid_list(path, text, position + 1, "Extra data")


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _invalid_list(path: Path, text: str, position: int, reason: str) -> DataError:
    line = text.count("\n", 0, position) + 1
    fix = "write a list of objects or one object per line"
    return DataError(file_location(path, line), f"invalid JSON: {reason}", fix)


def json_values(path: Path, lines: Iterator[RawLine], summary: FileSummary) -> Iterator[Value]:
    """The values of a .jsonl or .json file: the items of a list, or one per line. Blank lines are counted and skipped."""
    for number, (line, end, _) in enumerate(lines, 1):
        if file_format(path) == "json" and line.lstrip().startswith("["):
            text = "\n".join([line, *(rest.text for rest in lines)])
            yield from (item._replace(line=item.line + number - 1) for item in _list_items(path, text))
            return
        if not line.strip():
            summary.blank += 1
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"invalid JSON: {error}"
            value = DataError(file_location(path, number), problem, ".jsonl files need one object per line")
        yield Value(number, value, line, end)


def read_objects(
    path: Path, keys: Sequence[str], encoding: str, summary: FileSummary, *, optional_keys: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a .jsonl or .json file, or rows of a .parquet file, with their line or row, from 1. From Parquet, only the
    columns `keys` and `optional_keys` are read."""
    is_empty = True
    if file_format(path) == "parquet":
        for number, row, _ in read_parquet(path, keys, optional_keys, summary):
            is_empty = False
            yield number, row
    else:
        for line, value, _, _ in json_values(path, map(RawLine, read_lines(path, encoding, summary)), summary):
            is_empty = False
            yield line, as_object(value, keys, file_location(path, line))
    if is_empty:
        raise DataError(path, "no rows" if file_format(path) == "parquet" else "the list is empty")


def as_object(value: Any, keys: Sequence[str], where: str) -> dict[str, Any]:
    """Return `value` if it is an object; otherwise an error that names the expected keys."""
    if isinstance(value, dict):
        return value
    if isinstance(value, DataError):
        raise value
    *first, last = map(repr, keys)
    names = f"{', '.join(first)} and {last}" if first else last
    raise DataError(where, f"expected an object with {names}, got {JSON_TYPES.get(type(value), 'null')}")


def _keys(value: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Keys of an object; keys of nested objects are dotted."""
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _keys(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _lookup(value: Any, name: str) -> list[Any]:
    """[value] of a key, which may be a dotted key of nested objects; [] if it does not exist."""
    if not isinstance(value, dict):
        return []
    if name in value:
        return [value[name]]
    dots = [index for index, char in enumerate(name) if char == "."]
    matches = (_lookup(value.get(name[:dot]), name[dot + 1 :]) for dot in dots)
    return next((match for match in matches if match), [])


def has_key(value: dict[str, Any], name: str) -> bool:
    return bool(_lookup(value, name))


def get_value(value: dict[str, Any], name: str, where: str) -> Any:
    """The value of the key `a`, or of `a.b` in a nested object."""
    match = _lookup(value, name)
    if not match:
        raise DataError(where, f"no key {name!r}", available(name, preview_cells(list(_keys(value)))))
    return match[0]


def get_string(value: dict[str, Any], name: str, where: str) -> str:
    """The string of a key; an error for other types."""
    text = get_value(value, name, where)
    if isinstance(text, dict) and text:
        inner = ", ".join(preview_cells([f"{name}.{key}" for key in text]))
        raise DataError(where, f"expected a string as {name!r}, got an object", f"use one of its keys: {inner}")
    if not isinstance(text, str):
        problem = f"expected a string as {name!r}, got {JSON_TYPES.get(type(text), 'null')}"
        raise DataError(where, problem, "put it in quotes")
    return check_text(text, f"{where}: {name!r}")
