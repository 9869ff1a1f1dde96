"""Records that are rows of tables, or objects, with columns by name. All of it comes through the gate."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.columns import WantedColumn, by_name
from weft.data.json_objects import field_of, read_objects, value_of
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.data.table_rows import OBJECTS, TABLES, TableOptions, kind_of, open_table, place_of
from weft.errors import DataError
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview, quote


class TableRecord(NamedTuple):
    texts: tuple[str, ...]
    values: tuple[str, ...]  # of the other columns, as they are written
    path: Path
    line: int  # where it starts in that file, from 1


def number(record: TableRecord, at: int = 0) -> float:
    """A value of a record as a number; refused with its place where it is none."""
    text = record.values[at].strip()
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise DataError("", f"{place_of(record.path, record.line)} has {quote(text, 40)} where a number should be")
    return found


@dataclass
class TableSummary:
    """What was found in tables."""

    files: FileSummary  # line ends, encoding, notes; it counts no lines
    columns: tuple[str, ...]
    sizes: tuple[ColumnSize, ...]
    count: int = 0
    examples: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)  # texts and values

    @property
    def characters(self) -> int:
        """Of all texts."""
        return sum(size.characters for size in self.sizes)

    @property
    def crlf(self) -> int:
        return self.files.has_crlf

    def add(self, record: TableRecord) -> None:
        self.count += 1
        for size, text in zip(self.sizes, record.texts, strict=True):
            size.add(text)
        if len(self.examples) < 3:
            cut = [tuple(text[: PREVIEW_CHARS + 1] for text in cells) for cells in (record.texts, record.values)]
            self.examples.append((cut[0], cut[1]))

    def bytes_of(self, column: str) -> int:
        return self.sizes[self.columns.index(column)].bytes

    def strata(self) -> None:
        """Shares are taken off the end."""

    def fault(self) -> None:
        """Nothing is known that would be wrong with all of them."""

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'example')} of {pluralize(self.characters, 'character')},"
            f" {self.files.written}"
        ]
        blank = [f"blank lines that were skipped: {self.files.blank:,}"] if self.files.blank else []
        empty = [f"empty {name}: {size.empty:,}" for name, size in zip(self.columns, self.sizes, strict=True) if size.empty]
        rows += [f"  note: {preview(note, 200)}" for note in [*self.files.notes, *blank, *empty]]
        for texts, values in self.examples:
            said = f" -> {preview(', '.join(values))}" if values else ""
            rows.append(f"  e.g.: {' | '.join(map(preview, texts))}{said}")
        return "\n".join(rows)


@dataclass(frozen=True)
class TableFormat:
    """The columns that hold texts, each of which becomes a corpus of its name, and those that hold other values."""

    columns: tuple[str, ...]
    values: tuple[str, ...] = ()
    encoding: str = "utf-8"
    rows: str = "examples"
    kept: bool = False
    delimiter: str | None = None
    sheet: str | int | None = None

    def options(self) -> TableOptions:
        return TableOptions(self.encoding, self.delimiter, self.sheet)

    def files(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return given

    def apart(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, given: tuple[Path, ...], summary: FileSummary) -> Iterator[TableRecord]:
        names = (*self.columns, *self.values)
        for path in given:
            if kind_of(path) == "text":
                raise DataError(path, f"is {TABLES}", f"give a table with the columns {', '.join(names)}")
            count, read = 0, _read_objects if kind_of(path) in OBJECTS else _read_table
            for line, cells in read(path, names, self.options(), summary):
                count += 1
                texts = len(self.columns)
                yield TableRecord(tuple(cells[:texts]), tuple(cells[texts:]), path, line)
            if not count:
                raise DataError(path, "has a header and nothing below it", "give a file with examples in it")

    def summary(self, given: tuple[Path, ...], summary: FileSummary) -> TableSummary:
        return TableSummary(summary, self.columns, tuple(ColumnSize() for _ in self.columns))

    def texts(self, record: TableRecord) -> tuple[str, ...]:
        return record.texts

    def shown(self, column: str) -> str:
        return column if len(self.columns) > 1 else ""

    def provenance(self, given: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {"column": column, "encoding": self.encoding, **self.options().provenance(), "files": fingerprints(given)}


def _read_table(
    path: Path, names: tuple[str, ...], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[str]]]:
    config = open_table(path, options, summary)
    places = by_name(config, [WantedColumn("", name) for name in names])
    summary.columns = tuple(config.first)
    for line, cells in config.rows():
        yield line, [cells[place] for place in places]


def _read_objects(
    path: Path, names: tuple[str, ...], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[str]]]:
    for line, row in read_objects(path, names, options.encoding, summary):
        summary.columns = summary.columns or tuple(row)
        yield line, [_cell(row, name, place_of(path, line)) for name in names]


def _cell(row: dict[str, Any], name: str, where: str) -> str:
    """A text, or a number as JSON writes it."""
    value = value_of(row, name, where)
    return json.dumps(value) if type(value) in (int, float) else field_of(row, name, where)
