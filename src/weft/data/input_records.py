"""Records of a file that a run is used on, and the same file with what the run says of them added.

Tables and JSON are read as those of training are, but only what the run reads is asked of them: the columns of the texts. What
is added stands behind what was there, which is copied as it was: quotes, spaces and the digits of numbers stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from weft.data.columns import PEEK_ROWS, WantedColumn, by_index, by_name, has_names, looks_like_header, no_column
from weft.data.json_objects import Value, as_object, field_of, has_key, json_values
from weft.data.table_rows import (
    AS_USUAL,
    OBJECTS,
    OpenTable,
    Row,
    TableOptions,
    csv_cell,
    kind_of,
    numbered,
    open_rows,
    open_workbook,
    place_of,
    preview_cells,
    wrong_column_count,
)
from weft.data.workbooks import as_json, read_parquet
from weft.errors import DataError
from weft.text.reading import FileSummary, RawLine, pluralize

_MARKS = re.compile("[,;|\t]")


class Entry(NamedTuple):
    """A record: what the run reads of it, where it is, and how it stands in its file."""

    text: str | None  # as a line; None where it can't be read
    texts: tuple[str, ...]  # one, or two; of a tagger the words
    where: str  # before `fault` in messages; "" where that names the place itself
    raw: str
    fault: str | None = None  # why it can't be used
    keys: tuple[str, ...] = ()  # of an object
    end: str = "\n"  # of its line, as its file has it


Values = Mapping[str, Any]  # what is added to a record: a text, a number, several of them, or None


class Form(Protocol):
    """How records are written."""

    @property
    def is_plain(self) -> bool:
        """Whether records are lines, which every command writes in its own way."""

    def head(self, names: Sequence[str]) -> str:
        """What stands before all records, with the names of what is added to each."""

    def row(self, entry: Entry, values: Values) -> str:
        """A record with what is added."""

    def tail(self) -> str:
        """What stands behind them."""

    def matches(self, other: Form) -> bool:
        """Whether records of both may stand in one file."""


@dataclass(frozen=True)
class OpenedRecords:
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
    raw: Callable[[], Iterator[RawLine]] | None = None  # the same lines, where it matters what else they have

    def raw_lines(self) -> Iterator[RawLine]:
        return map(RawLine, self.lines()) if self.raw is None else self.raw()


class ColumnUse(NamedTuple):
    """What a run reads of a table."""

    wanted: tuple[WantedColumn, ...]  # the columns of its texts
    # where names are the usual ones: all columns of a table without a header, in order; else nothing
    usual: tuple[WantedColumn, ...] = ()
    joint: str = ","  # between several values in a cell
    options: TableOptions = AS_USUAL


@dataclass(frozen=True)
class PlainForm:
    """Lines."""

    is_plain: bool = True

    def head(self, names: Sequence[str]) -> str:
        return ""

    def row(self, entry: Entry, values: Values) -> str:
        return "\t".join("" if value is None else str(value) for value in values.values()) + "\n"

    def tail(self) -> str:
        return ""

    def matches(self, other: Form) -> bool:
        return other.is_plain


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


def _tsv_cell(text: str, separator: str) -> str:
    """What no cell can hold as an escape: there are no quotes."""
    text = text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return text.replace(separator, f"\\x{ord(separator):02x}")


@dataclass(frozen=True)
class TableForm:
    """A .csv or .tsv."""

    quotes: bool
    separator: str
    header: tuple[str, ...] | None  # the cells of the first line, where they are names
    above: str  # that line
    joint: str
    end: str = "\n"  # of that line
    is_plain: bool = False

    def _with(self, raw: str, cells: Sequence[str], end: str) -> str:
        own = [csv_cell(cell, self.separator) if self.quotes else _tsv_cell(cell, self.separator) for cell in cells]
        return self.separator.join([raw, *own]) + end

    def head(self, names: Sequence[str]) -> str:
        return "" if self.header is None else self._with(self.above, free(names, self.header), self.end)

    def row(self, entry: Entry, values: Values) -> str:
        return self._with(entry.raw, [_written(value, self.joint) for value in values.values()], entry.end)

    def tail(self) -> str:
        return ""

    def matches(self, other: Form) -> bool:
        return isinstance(other, TableForm) and (self.quotes, self.separator, self.header) == (
            other.quotes,
            other.separator,
            other.header,
        )


def _columns(table: OpenTable, used: ColumnUse) -> tuple[list[int], bool]:
    """Where the texts stand, from 0, and whether the first line is a header: as training finds it, but the other columns may
    be missing."""
    path, first, wanted = table.path, table.first, used.wanted
    if any(isinstance(name, int) for _, name in wanted):
        return by_index(table, wanted), False
    if not used.usual or has_names(first, used.usual):
        return by_name(table, wanted), True
    if len(first) == 1 == len(wanted):  # nothing but texts, or names between which stands something else
        if has_names(_MARKS.split(first[0]), used.usual):
            raise no_column(table, str(wanted[0].name), wanted[0].option)
        return [0], False
    if len(used.usual) == 1:
        return by_name(table, wanted), True
    if len(first) < len(wanted):
        raise table.wrong_column_count(1, first, f"{len(wanted)} or more")
    if looks_like_header(first, table.peek(PEEK_ROWS)):
        names = " and ".join(f"{name!r}" for _, name in wanted)
        raise DataError(
            f"{place_of(path, 1)} looks like a header, and has no column {names}",
            f"{', '.join(preview_cells(first))}",
            "rename the one that is meant, or take the line out",
        )
    return [used.usual.index(one) for one in wanted], False


def _table_entries(rows: Iterator[Row], table: OpenTable, places: Sequence[int]) -> Iterator[Entry]:
    width, before = len(table.first), table.begin.end or "\n"
    for line, cells, raw, end in rows:
        where, before = place_of(table.path, line), end or before  # the last line may have no end
        if len(cells) != width:
            problem = wrong_column_count(cells, f"{width} as {numbered(table.path, 1)} has", table.separator)
            padded = raw + table.separator * max(0, width - len(cells))
            yield Entry(None, (), where, padded, problem, end=before)
            continue
        texts = tuple(cells[place] for place in places)
        yield Entry("\t".join(texts), texts, where, raw, end=before)


def _open_table(file: InputFile, used: ColumnUse) -> OpenedRecords:
    path, summary, sheet = file.path, FileSummary([file.path], "utf-8"), kind_of(file.path) == "xlsx"
    table = open_workbook(path, used.options, summary) if sheet else open_rows(path, file.raw_lines(), used.options, summary)
    places, header = _columns(table, used)
    rows = table.has_rows() if header else chain([table.begin], table.has_rows())
    form = TableForm(
        kind_of(path) != "tsv",
        table.separator or ",",
        tuple(table.first) if header else None,
        table.begin.raw,
        used.joint,
        table.begin.end or "\n",
    )
    if not header and len(table.first) > 1:
        told = ", ".join(f"{option} is column {at + 1}" for (option, _), at in zip(used.wanted, places, strict=True))
        summary.notes.append(f"{path.name}: {numbered(path, 1)} is no header: {told} of {len(table.first)}")
    return OpenedRecords(form, _table_entries(rows, table, places), summary.notes, ", written as CSV" if sheet else "")


# ---- JSON


class JsonForm:
    """An object a line, with what is added behind its own keys."""

    is_plain = False

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
            return own + entry.end
        inner = entry.raw[1:-1].strip()
        return f"{{{inner}{', ' if inner else ''}{own[1:]}{entry.end}"

    def tail(self) -> str:
        return ""

    def matches(self, other: Form) -> bool:
        return isinstance(other, JsonForm)


def _json_entry(found: Value, path: Path, used: ColumnUse) -> Entry:
    where, keys = place_of(path, found.line), [str(name) for _, name in used.wanted]
    # an object of a list may have several lines, and what is no object has nothing to add to
    raw = " ".join(found.raw.strip().split("\n")) if isinstance(found.value, dict) else ""
    own, end = tuple(found.value) if isinstance(found.value, dict) else (), found.end or "\n"
    try:
        row = as_object(found.value, keys, where)
        texts = tuple(field_of(row, key, where) for key in keys)
    except DataError as error:
        return Entry(None, (), "", raw, str(error), own, end)
    return Entry("\t".join(texts), texts, where, raw, None, own, end)


def _parquet_values(path: Path, keys: Sequence[str]) -> Iterator[Value]:
    for number, row, values in read_parquet(path, keys, None, FileSummary([path], "utf-8")):
        yield Value(number, row, json.dumps(as_json(values), ensure_ascii=False, allow_nan=False))


def _open_objects(file: InputFile, used: ColumnUse) -> OpenedRecords:
    path, keys, packed = file.path, [str(name) for _, name in used.wanted], kind_of(file.path) == "parquet"
    for option, name in used.wanted:
        if isinstance(name, int):
            what = "columns with names" if packed else "keys and no columns"
            raise DataError(path, f"has {what}, but data.{option} = {name} was trained with", "give a table")
    values = _parquet_values(path, keys) if packed else json_values(path, file.raw_lines(), FileSummary([path], "utf-8"))
    first = next(values, None)
    if first is None:
        raise DataError(path, f"has no {'row' if packed else 'object'} in it", "give a file with some")
    row = as_object(first.value, keys, place_of(path, first.line))
    for key in keys:
        if not has_key(row, key):
            field_of(row, key, place_of(path, first.line))  # another file altogether: refused
    entries = (_json_entry(one, path, used) for one in chain([first], values))
    notes = [f"{path.name}: Parquet, {pluralize(len(row), 'column')}"] if packed else []
    return OpenedRecords(JsonForm(list(row)), entries, notes, ", written as JSONL")


def open_records(file: InputFile, used: ColumnUse) -> OpenedRecords:
    """The records of a table, of JSON or of Parquet."""
    return (_open_objects if kind_of(file.path) in OBJECTS else _open_table)(file, used)
