"""Writes data in memory to files: lists of texts, tuples or dicts, dicts of columns, pandas, polars and
Arrow tables, iterators. None of those packages is imported: a table is recognized by its methods.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Such as pyarrow.Table."""

    def to_pylist(self) -> list[Row]: ...


@runtime_checkable
class PolarsFrame(Protocol):
    """Such as polars.DataFrame."""

    def iter_rows(self, *, named: bool) -> Iterator[Row]: ...


@runtime_checkable
class PandasFrame(Protocol):
    """Such as pandas.DataFrame."""

    @property
    def columns(self) -> Iterable[Any]: ...

    def itertuples(self, *, index: bool, name: str | None) -> Iterator[tuple[Any, ...]]: ...


@runtime_checkable
class _Array(Protocol):
    """Such as a NumPy array or scalar, a pandas series."""

    def tolist(self) -> Any: ...


@runtime_checkable
class _Series(Protocol):
    """Such as polars.Series."""

    def to_list(self) -> list[Any]: ...


def _json_value(value: Any) -> Any:
    """A value that JSON can represent; NaN, a missing value of a table, becomes null."""
    if isinstance(value, _Array):
        value = value.tolist()
    elif isinstance(value, _Series):
        value = value.to_list()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, set | frozenset):
        return sorted(_json_value(item) for item in value)
    return [_json_value(item) for item in value] if isinstance(value, tuple | list) else value


def _by_columns(columns: Mapping[str, Iterable[Any]], where: str) -> Iterator[Row]:
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
    """Whether data has columns: a dict of columns, or a table of another package."""
    return isinstance(data, Mapping | PolarsFrame | ArrowTable | PandasFrame)


def iter_records(data: object, where: str) -> Iterator[Any]:
    """The records of data of any supported type."""
    if isinstance(data, Mapping):
        return _by_columns(data, where)
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


def _as_json(row: Row, where: str) -> str:
    try:
        return json.dumps(row, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise DataError(where, f"cannot be written as JSON: {error}") from None


@dataclass(frozen=True)
class MemoryFormat:
    """The records of a task and how they are written to a file.

    A tuple has its values in the order of `names`: inputs first, then outputs.
    """

    names: tuple[Name, ...]  # keys of a record, as in [data]
    inputs: int = 1  # how many of the names are inputs
    optional: tuple[str, ...] = ()  # names at the end that may be missing
    suffix: str = ".jsonl"
    write: Callable[[Row, str], str] = _as_json  # formats a record; gets its location for messages
    texts: bool = False  # whether a record is a text

    def keys(self) -> list[str]:
        for name in self.names:
            if isinstance(name, int):
                problem = f"column {name} is an index, but records in memory have names"
                raise UsageError("data", problem, "use the name of a key instead")
        return list(map(str, self.names))

    def row(self, record: Any, where: str) -> Row:
        """A record as a dict."""
        keys = self.keys()
        record = _json_value(record) if not isinstance(record, tuple) else record
        if isinstance(record, Mapping):
            values = dict(record)
            wanted = [key for key in keys if key not in self.optional or has_key(values, key)]
            return {key: _json_value(get_value(values, key, where)) for key in wanted}
        if self.texts:
            return {keys[0]: record}
        minimum = len(keys) - len(self.optional)
        if isinstance(record, Sequence) and not isinstance(record, str) and minimum <= len(record) <= len(keys):
            return dict(zip(keys, map(_json_value, record), strict=False))
        actual = f"{len(record)} values" if isinstance(record, list | tuple) else type(record).__name__
        raise DataError(where, f"expected a dict or a tuple ({', '.join(keys)}), got {actual}")

    def get_input(self, record: Any, where: str) -> Any:
        """The input of a prediction: the input columns of a dict; any other record is an input itself."""
        if not isinstance(record, Mapping):
            return record
        values = [_json_value(get_value(dict(record), key, where)) for key in self.keys()[: self.inputs]]
        return values[0] if len(values) == 1 else tuple(values)

    def lines(self, data: object, where: str) -> Iterator[str]:
        """All records as lines of a file."""
        number = 0
        for number, record in enumerate(iter_records(data, where), 1):
            location = f"{where}: record {number}"
            yield self.write(self.row(record, location), location)
        if not number:
            raise DataError(where, "is empty")


def text_format(*, lines: bool) -> MemoryFormat:
    """Texts with one or more lines each; exactly one for a run that reads lines."""

    def write(row: Row, where: str) -> str:
        text = row["text"]
        if not isinstance(text, str):
            raise DataError(where, f"expected a string, got {type(text).__name__}")
        if lines and "\n" in text.removesuffix("\n"):
            raise DataError(where, "contains a newline, but the run reads one text per line", "split it")
        return text if text.endswith("\n") else f"{text}\n"

    return MemoryFormat(("text",), suffix=".txt", write=write, texts=True)


def is_in_memory(data: object, format: MemoryFormat, where: str) -> bool:
    """Whether data is not the name of one or more files. A list of strings has texts if records are texts, else file names."""
    if isinstance(data, str | Path):
        return False
    if not isinstance(data, list | tuple) or not data:
        return True
    if all(isinstance(item, Path) for item in data):
        return False
    strings = [item for item in data if isinstance(item, str)]
    if len(strings) < len(data):
        return True
    if format.texts and all(len(text) < 256 and _is_file(text) for text in strings):
        raise UsageError(where, "the texts are names of files", "use pathlib.Path for paths, str for texts")
    return format.texts


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def write_memory(path: Path, data: object, format: MemoryFormat, *, encoding: str, where: str) -> None:
    """Write data to a file, all of it or nothing."""
    encoder = codecs.getincrementalencoder(encoding)()
    with files.atomic_write(path) as write:
        remaining = format.lines(data, where)
        while lines := list(islice(remaining, BATCH_LINES)):
            try:
                write(encoder.encode("".join(lines)))
            except UnicodeEncodeError as error:
                raise DataError(where, f"cannot be encoded as {encoding}: {error.reason}") from None
