"""Writes in-memory data to files: lists of texts, tuples or dicts, dicts of columns, pandas, polars and Arrow tables, and
iterators. None of these packages is imported: a table is recognized by its methods.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from weft import files
from weft.data.columns import Name
from weft.data.json_objects import get_value, has_key
from weft.errors import DataError, UsageError

BATCH_LINES = 1 << 12  # lines written at once
Row = dict[str, Any]


# ---- tables of other packages


@runtime_checkable
class ArrowTable(Protocol):
    """For example, pyarrow.Table."""

    def to_pylist(self) -> list[Row]: ...


@runtime_checkable
class PolarsFrame(Protocol):
    """For example, polars.DataFrame."""

    def iter_rows(self, *, named: bool) -> Iterator[Row]: ...


@runtime_checkable
class PandasFrame(Protocol):
    """For example, pandas.DataFrame."""

    @property
    def columns(self) -> Iterable[Any]: ...

    def itertuples(self, *, index: bool, name: str | None) -> Iterator[tuple[Any, ...]]: ...


@runtime_checkable
class _Array(Protocol):
    """For example, a NumPy array or scalar, or a pandas.Series."""

    def tolist(self) -> Any: ...


@runtime_checkable
class _Series(Protocol):
    """For example, polars.Series."""

    def to_list(self) -> list[Any]: ...


def _json_value(value: Any) -> Any:
    """Convert to a value that JSON can represent; NaN, a missing value in a table, becomes null."""
    if isinstance(value, _Array):
        value = value.tolist()
    elif isinstance(value, _Series):
        value = value.to_list()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, set | frozenset):
        return sorted(_json_value(item) for item in value)
    return [_json_value(item) for item in value] if isinstance(value, tuple | list) else value


def _rows_of_columns(columns: Mapping[str, Iterable[Any]], where: str) -> Iterator[Row]:
    """The rows of a dict of columns."""
    for name, column in columns.items():
        if isinstance(column, str) or not isinstance(column, Iterable):
            raise DataError(where, f"expected a list as column {name!r}, got {type(column).__name__}")
    lists = {name: list(column) for name, column in columns.items()}
    lengths = {name: len(column) for name, column in lists.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name!r} ({length:,})" for name, length in lengths.items())
        raise DataError(where, f"columns have different lengths: {counts}")
    return (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))


def is_table(data: object) -> bool:
    """Whether `data` is a dict of columns or a table of another package."""
    return isinstance(data, Mapping | PolarsFrame | ArrowTable | PandasFrame)


def iter_records(data: object, where: str) -> Iterator[Any]:
    """Records of data of any supported type."""
    if isinstance(data, Mapping):
        return _rows_of_columns(data, where)
    if isinstance(data, PolarsFrame):
        return data.iter_rows(named=True)
    if isinstance(data, ArrowTable):
        return iter(data.to_pylist())
    if isinstance(data, PandasFrame):
        names = list(map(str, data.columns))
        return (dict(zip(names, row, strict=True)) for row in data.itertuples(index=False, name=None))
    if isinstance(data, Iterable):
        return iter(data)
    raise DataError(where, f"expected a path, a list of records, a dict of columns or a table, got {type(data).__name__}")


# ---- records of a task


def _json_line(row: Row, where: str) -> str:
    try:
        return json.dumps(row, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise DataError(where, f"cannot be written as JSON: {error}") from None


@dataclass(frozen=True)
class MemoryFormat:
    """Converts the in-memory records of a task to lines of a file.

    The values of a tuple are in the order of `names`: inputs first, then outputs.
    """

    names: tuple[Name, ...]  # keys of a record, as in [data]
    num_inputs: int = 1  # number of names that are inputs
    optional: tuple[str, ...] = ()  # last names, which may be missing
    suffix: str = ".jsonl"
    to_lines: Callable[[Row, str], str] = _json_line  # formats a record; the second argument is its location for errors
    is_text: bool = False  # whether a record is a single text
    # of records whose first value is a file: its path, or the content of a file for a value in memory, such as a waveform
    to_file: Callable[[Any, str], str | bytes] | None = None

    def keys(self) -> list[str]:
        for name in self.names:
            if isinstance(name, int):
                problem = f"column {name} is an index, but records in memory have names"
                raise UsageError("data", problem, "use the name of a key instead")
        return list(map(str, self.names))

    def row(self, record: Any, where: str) -> Row:
        """A record as a dict."""
        keys = self.keys()
        record = record if isinstance(record, tuple) or self.to_file is not None else _json_value(record)
        if isinstance(record, Mapping):
            values = dict(record)
            present = [key for key in keys if key not in self.optional or has_key(values, key)]
            return {key: self._value(key, get_value(values, key, where)) for key in present}
        if self.is_text:
            return {keys[0]: record}
        num_required = len(keys) - len(self.optional)
        if isinstance(record, Sequence) and not isinstance(record, str) and num_required <= len(record) <= len(keys):
            return {key: self._value(key, value) for key, value in zip(keys, record, strict=False)}
        actual = f"{len(record)} values" if isinstance(record, list | tuple) else type(record).__name__
        raise DataError(where, f"expected a dict or a tuple ({', '.join(keys)}), got {actual}")

    def _value(self, key: str, value: Any) -> Any:
        return value if self.to_file is not None and key == self.names[0] else _json_value(value)

    def get_input(self, record: Any, where: str) -> Any:
        """The input for a prediction: the input columns of a dict; any other record is returned unchanged."""
        if not isinstance(record, Mapping):
            return record
        values = [self._value(key, get_value(dict(record), key, where)) for key in self.keys()[: self.num_inputs]]
        return values[0] if len(values) == 1 else tuple(values)

    def lines(self, data: object, where: str, add_file: Callable[[bytes], str]) -> Iterator[str]:
        """Format all records. `add_file` stores the content of a file and returns its path."""
        number = 0
        for number, record in enumerate(iter_records(data, where), 1):
            location = f"{where}: record {number}"
            row = self.row(record, location)
            if self.to_file is not None:
                file = self.to_file(row[self.keys()[0]], location)
                row[self.keys()[0]] = file if isinstance(file, str) else add_file(file)
            yield self.to_lines(row, location)
        if not number:
            raise DataError(where, "is empty")


def text_format(*, lines: bool) -> MemoryFormat:
    """The format of plain texts; with `lines`, for a run that reads lines, each text has one line."""

    def to_lines(row: Row, where: str) -> str:
        text = row["text"]
        if not isinstance(text, str):
            raise DataError(where, f"expected a string, got {type(text).__name__}")
        if lines and "\n" in text.removesuffix("\n"):
            raise DataError(where, "contains a newline, but the run reads one text per line", "split it")
        return text if text.endswith("\n") else f"{text}\n"

    return MemoryFormat(("text",), suffix=".txt", to_lines=to_lines, is_text=True)


def is_in_memory(data: object, format: MemoryFormat, where: str) -> bool:
    """Whether `data` contains records instead of file names. A list of strings contains texts if records are texts, else names
    of files."""
    if isinstance(data, str | Path):
        return False
    if not isinstance(data, list | tuple) or not data:
        return True
    if all(isinstance(item, Path) for item in data):
        return False
    strings = [item for item in data if isinstance(item, str)]
    if len(strings) < len(data):
        return True
    if format.is_text and all(len(text) < 256 and _is_file(text) for text in strings):
        raise UsageError(where, "the texts are names of files", "use pathlib.Path for paths, str for texts")
    return format.is_text


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


class _Archive(io.RawIOBase):
    """A zip archive of the files of records, written beside their manifest once there is one."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        super().__init__()
        self.path, self.stack, self.count = path, stack, 0
        self.zip: zipfile.ZipFile | None = None

    def add(self, content: bytes) -> str:
        """Store a file; its path is relative to the manifest."""
        if self.zip is None:
            self.write_bytes = self.stack.enter_context(files.atomic_write(self.path))
            self.zip = self.stack.enter_context(zipfile.ZipFile(self, "w"))
        self.count += 1
        name = f"{self.count:06d}"
        self.zip.writestr(zipfile.ZipInfo(name), content)  # without a time: equal data gives equal archives
        return f"{self.path.name}/{name}"

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.write_bytes(bytes(data))
        return len(data)


def archive_of(path: Path) -> Path:
    """The archive of the files of records in memory, beside the file of the records."""
    return path.with_suffix(".zip")


def write_memory(path: Path, data: object, format: MemoryFormat, *, encoding: str, where: str) -> None:
    """Write all records to a file atomically; files in memory are written to an archive beside it."""
    encoder = codecs.getincrementalencoder(encoding)()
    with ExitStack() as stack:
        write, archive = stack.enter_context(files.atomic_write(path)), _Archive(archive_of(path), stack)
        remaining = format.lines(data, where, archive.add)
        while lines := list(islice(remaining, BATCH_LINES)):
            try:
                write(encoder.encode("".join(lines)))
            except UnicodeEncodeError as error:
                raise DataError(where, f"cannot be encoded as {encoding}: {error.reason}") from None


def list_inputs(inputs: Any) -> list[Any]:
    """The inputs of a call as a list; a string is one input. Values that are no collection of inputs are refused: iterating
    over bytes gives integers, and over a dict its keys."""
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, bytes | bytearray | Mapping) or not isinstance(inputs, Iterable):
        raise DataError("inputs", f"expected a string or a list, got {type(inputs).__name__}")
    return list(inputs)
