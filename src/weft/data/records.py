"""Records of a file that a run is used on, and the same file with what the run says of them added.

Tables and JSON are read as those of training are, but only what the run reads is asked of them: the columns of the texts. What
is added stands behind what was there, which is copied as it was: quotes, spaces and the digits of numbers stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from weft.data.columns import AHEAD, Wanted, by_name, by_place, has_names, looks_like_header
from weft.data.rows import (
    OpenTable,
    Row,
    Value,
    as_object,
    brief,
    field_of,
    has_key,
    json_values,
    kind_of,
    misshapen,
    open_rows,
)
from weft.errors import DataError
from weft.text.gate import Seen


class Entry(NamedTuple):
    """A record: what the run reads of it, where it is, and how it stands in its file."""

    text: str | None  # as a line; None where it can't be read
    texts: tuple[str, ...]  # one, or two; of a tagger the words
    where: str  # before `fault` in messages; "" where that names the place itself
    raw: str
    fault: str | None = None  # why it can't be used
    keys: tuple[str, ...] = ()  # of an object


Values = Mapping[str, Any]  # what is added to a record: a text, a number, several of them, or None


class Form(Protocol):
    """How records are written."""

    @property
    def plain(self) -> bool:
        """Whether records are lines, which every command writes in its own way."""

    def head(self, names: Sequence[str]) -> str:
        """What stands before all records, with the names of what is added to each."""

    def row(self, entry: Entry, values: Values) -> str:
        """A record with what is added."""

    def tail(self) -> str:
        """What stands behind them."""

    def like(self, other: Form) -> bool:
        """Whether records of both may stand in one file."""


@dataclass(frozen=True)
class Opened:
    """A file whose records are about to be read."""

    form: Form
    entries: Iterator[Entry]
    notes: list[str] = field(default_factory=list)  # how it is read
    writes: str = ""  # what a command says behind them that writes the file again


class InputFile(NamedTuple):
    """A file that a run is used on."""

    path: Path
    lines: Callable[[], Iterator[str]]  # from its beginning
    labels: Collection[str] = ()  # labels, or tags, of the run
    targets: bool = False  # of pairs, read these, too


class Used(NamedTuple):
    """What a run reads of a table."""

    wanted: tuple[Wanted, ...]  # the columns of its texts
    # where names are the usual ones: all columns of a table without a header, in order; else nothing
    usual: tuple[Wanted, ...] = ()
    joint: str = ","  # between several values in a cell


@dataclass(frozen=True)
class Plain:
    """Lines."""

    plain: bool = True

    def head(self, names: Sequence[str]) -> str:
        return ""

    def row(self, entry: Entry, values: Values) -> str:
        return "\t".join("" if value is None else str(value) for value in values.values()) + "\n"

    def tail(self) -> str:
        return ""

    def like(self, other: Form) -> bool:
        return other.plain


def free(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The names, with a number behind those that a file has already."""
    found = []
    for name in names:
        tries = chain([name], (f"{name}_{number}" for number in range(2, len(taken) + 3)))
        found.append(next(one for one in tries if one not in taken))
    return found


# ---- tables


def _written(value: Any, joint: str) -> str:
    if isinstance(value, list | tuple):
        return joint.join(_written(one, joint) for one in value)
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _csv_cell(text: str, separator: str) -> str:
    if any(mark in text for mark in (separator, '"', "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text


def _tsv_cell(text: str) -> str:
    """What no cell can hold as an escape: there are no quotes."""
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


@dataclass(frozen=True)
class TableForm:
    """A .csv or .tsv."""

    quotes: bool
    separator: str
    header: tuple[str, ...] | None  # the cells of the first line, where they are names
    above: str  # that line
    joint: str
    plain: bool = False

    def _with(self, raw: str, cells: Sequence[str]) -> str:
        own = [_csv_cell(cell, self.separator) if self.quotes else _tsv_cell(cell) for cell in cells]
        return self.separator.join([raw, *own]) + "\n"

    def head(self, names: Sequence[str]) -> str:
        return "" if self.header is None else self._with(self.above, free(names, self.header))

    def row(self, entry: Entry, values: Values) -> str:
        return self._with(entry.raw, [_written(value, self.joint) for value in values.values()])

    def tail(self) -> str:
        return ""

    def like(self, other: Form) -> bool:
        return isinstance(other, TableForm) and (self.quotes, self.separator, self.header) == (
            other.quotes,
            other.separator,
            other.header,
        )


def _columns(table: OpenTable, used: Used) -> tuple[list[int], bool]:
    """Where the texts stand, from 0, and whether the first line is a header: as training finds it, but the other columns may
    be missing."""
    path, first, wanted = table.path, table.first, used.wanted
    if any(isinstance(name, int) for _, name in wanted):
        return by_place(path, first, wanted), False
    if not used.usual or has_names(first, used.usual):
        return by_name(path, first, wanted), True
    if len(first) == 1 == len(wanted):  # nothing but texts
        return [0], False
    if len(used.usual) == 1:
        return by_name(path, first, wanted), True
    if len(first) < len(wanted):
        raise table.misshapen(1, first, f"{len(wanted)} or more")
    if looks_like_header(first, table.ahead(AHEAD)):
        names = " and ".join(f"{name!r}" for _, name in wanted)
        raise DataError(
            f"{path}: line 1 looks like a header, and has no column {names}: {', '.join(brief(first))};"
            " rename the one that is meant, or take the line out"
        )
    return [used.usual.index(one) for one in wanted], False


def _table_entries(rows: Iterator[Row], table: OpenTable, places: Sequence[int]) -> Iterator[Entry]:
    width = len(table.first)
    for line, cells, raw in rows:
        where = f"{table.path}: line {line}"
        if len(cells) != width:
            fault = misshapen(cells, f"{width} as line 1 has", table.separator)
            padded = raw + table.separator * max(0, width - len(cells))
            yield Entry(None, (), where, padded, fault)
            continue
        texts = tuple(cells[place] for place in places)
        yield Entry("\t".join(texts), texts, where, raw)


def _open_table(path: Path, lines: Iterator[str], used: Used) -> Opened:
    seen = Seen([path], "utf-8")
    table = open_rows(path, lines, seen)
    places, header = _columns(table, used)
    rows = table.filled() if header else chain([table.begin], table.filled())
    form = TableForm(
        kind_of(path) == "csv", table.separator, tuple(table.first) if header else None, table.begin.raw, used.joint
    )
    if not header and len(table.first) > 1:
        told = ", ".join(f"{option} is column {at + 1}" for (option, _), at in zip(used.wanted, places, strict=True))
        seen.notes.append(f"{path.name}: line 1 is no header: {told} of {len(table.first)}")
    return Opened(form, _table_entries(rows, table, places), seen.notes)


# ---- JSON


class JsonForm:
    """An object a line, with what is added behind its own keys."""

    plain = False

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys  # of the first object

    def head(self, names: Sequence[str]) -> str:
        return ""

    def row(self, entry: Entry, values: Values) -> str:
        said = dict(values) if entry.fault is None else {**values, "error": entry.fault}
        # objects may have other keys than the first, whose names all keep to as far as they can
        names = free(list(said), [*self.keys, *entry.keys])
        added = dict(zip(names, said.values(), strict=True))
        own = json.dumps(added, ensure_ascii=False, allow_nan=False)
        if not entry.raw:
            return own + "\n"
        inner = entry.raw[1:-1].strip()
        return f"{{{inner}{', ' if inner else ''}{own[1:]}\n"

    def tail(self) -> str:
        return ""

    def like(self, other: Form) -> bool:
        return isinstance(other, JsonForm)


def _json_entry(found: Value, path: Path, used: Used) -> Entry:
    where, keys = f"{path}: line {found.line}", [str(name) for _, name in used.wanted]
    # an object of a list may have several lines, and what is no object has nothing to add to
    raw = " ".join(found.raw.strip().split("\n")) if isinstance(found.value, dict) else ""
    own = tuple(found.value) if isinstance(found.value, dict) else ()
    try:
        row = as_object(found.value, keys, where)
        texts = tuple(field_of(row, key, where) for key in keys)
    except DataError as error:
        return Entry(None, (), "", raw, str(error), own)
    return Entry("\t".join(texts), texts, where, raw, keys=own)


def _open_json(path: Path, lines: Iterator[str], used: Used) -> Opened:
    for option, name in used.wanted:
        if isinstance(name, int):
            raise DataError(f"{path}: has keys and no columns, but data.{option} = {name} was trained with; give a table")
    values = json_values(path, lines, Seen([path], "utf-8"))
    first = next(values, None)
    if first is None:
        raise DataError(f"{path}: has no object in it; give a file with some")
    row = as_object(first.value, [str(name) for _, name in used.wanted], f"{path}: line {first.line}")
    for _, name in used.wanted:
        if not has_key(row, str(name)):
            field_of(row, str(name), f"{path}: line {first.line}")  # another file altogether: refused
    return Opened(JsonForm(list(row)), (_json_entry(one, path, used) for one in chain([first], values)))


def open_records(path: Path, lines: Iterator[str], used: Used) -> Opened:
    """The records of a table or of JSON, whose lines are given."""
    opened = _open_table if kind_of(path) in ("csv", "tsv") else _open_json
    return opened(path, lines, used)
