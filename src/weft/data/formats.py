"""Tables and JSON objects with named columns as records. `weft.text.reading` reads and checks the text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.columns import ColumnSpec, by_name
from weft.data.json_objects import get_string, get_value, read_objects
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.data.table_rows import NOT_A_TABLE, OBJECT_FORMATS, TableOptions, file_format, file_location, open_table
from weft.errors import DataError
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview, quote


class TableRecord(NamedTuple):
    texts: tuple[str, ...]
    values: tuple[str, ...]  # of the other columns, unchanged
    path: Path
    line: int  # first line in the file, from 1


def number(record: TableRecord, index: int = 0) -> float:
    """Parse the value at `index` as a finite number."""
    text = record.values[index].strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(file_location(record.path, record.line), f"expected a number, got {quote(text, 40)}")
    return value


@dataclass
class TableSummary:
    """Summary of tables."""

    files: FileSummary  # line endings, encoding, notes; its line count is not used
    columns: tuple[str, ...]
    sizes: tuple[ColumnSize, ...]
    count: int = 0
    examples: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)  # texts and values

    @property
    def characters(self) -> int:
        """Number of characters in all texts."""
        return sum(size.characters for size in self.sizes)

    @property
    def num_crlf(self) -> int:
        return self.files.num_crlf

    def add(self, record: TableRecord) -> None:
        self.count += 1
        for size, text in zip(self.sizes, record.texts, strict=True):
            size.add(text)
        if len(self.examples) < 3:
            texts, values = (tuple(cell[: PREVIEW_CHARS + 1] for cell in cells) for cells in (record.texts, record.values))
            self.examples.append((texts, values))

    def bytes_of(self, column: str) -> int:
        return self.sizes[self.columns.index(column)].bytes

    def strata(self) -> None:
        """None: fractions are taken from the end."""

    def problem(self) -> None:
        """None: the data is not checked as a whole."""

    def describe(self) -> str:
        """A description in several lines: files, sizes, encoding, line endings, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'example')},"
            f" {pluralize(self.characters, 'character')},"
            f" {self.files.encoding_info}"
        ]
        blank = [f"skipped blank lines: {self.files.blank:,}"] if self.files.blank else []
        empty = [f"empty {name}: {size.empty:,}" for name, size in zip(self.columns, self.sizes, strict=True) if size.empty]
        rows += [f"  note: {preview(note, 200)}" for note in [*self.files.notes, *blank, *empty]]
        for texts, values in self.examples:
            outputs = f" -> {preview(', '.join(values))}" if values else ""
            rows.append(f"  e.g.: {' | '.join(map(preview, texts))}{outputs}")
        return "\n".join(rows)


@dataclass(frozen=True)
class TableFormat:
    """Tables with text columns, each of which becomes a corpus, and columns with other values."""

    columns: tuple[str, ...]
    values: tuple[str, ...] = ()
    encoding: str = "utf-8"
    rows: str = "examples"
    in_memory: bool = False
    delimiter: str | None = None
    sheet: str | int | None = None

    def options(self) -> TableOptions:
        return TableOptions(self.encoding, self.delimiter, self.sheet)

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return inputs

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[TableRecord]:
        names = (*self.columns, *self.values)
        for path in inputs:
            if file_format(path) == "text":
                raise DataError(path, NOT_A_TABLE, f"use a table with the columns {', '.join(names)}")
            count, read = 0, _read_objects if file_format(path) in OBJECT_FORMATS else _read_table
            for line, cells in read(path, names, self.options(), summary):
                count += 1
                num_texts = len(self.columns)
                yield TableRecord(tuple(cells[:num_texts]), tuple(cells[num_texts:]), path, line)
            if not count:
                raise DataError(path, "no examples below the header")

    def summary(self, inputs: tuple[Path, ...], summary: FileSummary) -> TableSummary:
        return TableSummary(summary, self.columns, tuple(ColumnSize() for _ in self.columns))

    def texts(self, record: TableRecord) -> tuple[str, ...]:
        return record.texts

    def column_label(self, column: str) -> str:
        return column if len(self.columns) > 1 else ""

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {"column": column, "encoding": self.encoding, **self.options().provenance(), "files": fingerprints(inputs)}


def _read_table(
    path: Path, names: tuple[str, ...], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[str]]]:
    table = open_table(path, options, summary)
    indices = by_name(table, [ColumnSpec("", name) for name in names])
    summary.columns = tuple(table.first)
    for line, cells in table.rows():
        yield line, [cells[index] for index in indices]


def _read_objects(
    path: Path, names: tuple[str, ...], options: TableOptions, summary: FileSummary
) -> Iterator[tuple[int, list[str]]]:
    for line, row in read_objects(path, names, options.encoding, summary):
        summary.columns = summary.columns or tuple(row)
        yield line, [_cell(row, name, file_location(path, line)) for name in names]


def _cell(row: dict[str, Any], name: str, where: str) -> str:
    """A string, or a number formatted as JSON."""
    value = get_value(row, name, where)
    return json.dumps(value) if type(value) in (int, float) else get_string(row, name, where)
