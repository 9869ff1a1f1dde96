"""Data that a Python caller has in memory, written down as files are: lists of texts, tuples or dicts, dicts of columns, tables
of pandas, polars and Arrow, iterators. None of those packages is imported: a table is known by its methods.
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
from weft.data.json_objects import has_key, value_of
from weft.errors import DataError, UsageError

LINES = 1 << 12  # that are written at once
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


def _plain(value: Any) -> Any:
    """A value as JSON has it; what is missing in a table, NaN, is null."""
    if isinstance(value, _Array):
        value = value.tolist()
    elif isinstance(value, _Series):
        value = value.to_list()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, set | frozenset):
        return sorted(_plain(one) for one in value)
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value


def _by_columns(columns: Mapping[str, Iterable[Any]], where: str) -> Iterator[Row]:
    """The rows of a dict of columns."""
    for name, column in columns.items():
        if isinstance(column, str) or not isinstance(column, Iterable):
            raise DataError(where, f"column {name!r} is {type(column).__name__}, not a list", "give a dict of columns")
    lists = {name: list(column) for name, column in columns.items()}
    lengths = {name: len(column) for name, column in lists.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {length:,}" for name, length in lengths.items())
        raise DataError(where, f"its columns are not equally long: {told}")
    return (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))


def is_table(data: object) -> bool:
    """Whether data has columns: a dict of them, or a table of another package."""
    return isinstance(data, Mapping | PolarsFrame | ArrowTable | PandasFrame)


def records_of(data: object, where: str) -> Iterator[Any]:
    """The records of whatever a caller gave, one by one."""
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
    raise DataError(where, f"is {type(data).__name__}", "give a path, a list of records, a dict of columns, or a table")


# ---- records of a task


def _as_json(row: Row, where: str) -> str:
    try:
        return json.dumps(row, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise DataError(where, f"can't be written as JSON: {error}") from None


@dataclass(frozen=True)
class MemoryFormat:
    """What a record of a task holds, and how it is written down.

    A tuple has the values in the order of `names`: inputs first, then what is to be predicted.
    """

    names: tuple[Name, ...]  # keys of a record, as [data] has them
    inputs: int = 1  # how many of them a prediction needs
    optional: tuple[str, ...] = ()  # of the last names, those that may be missing
    suffix: str = ".jsonl"
    write: Callable[[Row, str], str] = _as_json  # a record, with its place for messages
    texts: bool = False  # a record is a text

    def keys(self) -> list[str]:
        for name in self.names:
            if isinstance(name, int):
                raise UsageError(
                    "data", f"column {name} is a place, but records in memory have names", "drop it, or name a key"
                )
        return list(map(str, self.names))

    def row(self, record: Any, where: str) -> Row:
        """A record as a dict."""
        keys = self.keys()
        record = _plain(record) if not isinstance(record, tuple) else record
        if isinstance(record, Mapping):
            given = dict(record)
            wanted = [key for key in keys if key not in self.optional or has_key(given, key)]
            return {key: _plain(value_of(given, key, where)) for key in wanted}
        if self.texts:
            return {keys[0]: record}
        minimum = len(keys) - len(self.optional)
        if isinstance(record, Sequence) and not isinstance(record, str) and minimum <= len(record) <= len(keys):
            return dict(zip(keys, map(_plain, record), strict=False))
        summary = f"has {len(record)} values" if isinstance(record, list | tuple) else f"is {type(record).__name__}"
        raise DataError(where, f"{summary}", f"a record is a dict, or a tuple ({', '.join(keys)})")

    def input_of(self, record: Any, where: str) -> Any:
        """What a prediction needs of a record: of a dict the values of its input columns; all else is an input itself."""
        if not isinstance(record, Mapping):
            return record
        values = [_plain(value_of(dict(record), key, where)) for key in self.keys()[: self.inputs]]
        return values[0] if len(values) == 1 else tuple(values)

    def lines(self, data: object, where: str) -> Iterator[str]:
        """All records as they are written down."""
        number = 0
        for number, record in enumerate(records_of(data, where), 1):
            place = f"{where}: record {number}"
            yield self.write(self.row(record, place), place)
        if not number:
            raise DataError(where, "is empty")


def text_format(*, lines: bool) -> MemoryFormat:
    """Texts, each on lines of its own; of a run that reads lines, each on one."""

    def write(row: Row, where: str) -> str:
        text = row["text"]
        if not isinstance(text, str):
            raise DataError(where, f"is {type(text).__name__}, not a text")
        if lines and "\n" in text.removesuffix("\n"):
            raise DataError(where, "has a line end inside, but every text is a line (data.read_as = 'lines')", "split it")
        return text if text.endswith("\n") else f"{text}\n"

    return MemoryFormat(("text",), suffix=".txt", write=write, texts=True)


def is_in_memory(data: object, format: MemoryFormat, where: str) -> bool:
    """Whether data is no file, or files, by name. A list of strings is one of texts where a record is a text, else of files."""
    if isinstance(data, str | Path):
        return False
    if not isinstance(data, list | tuple) or not data:
        return True
    if all(isinstance(one, Path) for one in data):
        return False
    strings = [one for one in data if isinstance(one, str)]
    if len(strings) < len(data):
        return True
    if format.texts and all(len(one) < 256 and _is_file(one) for one in strings):
        raise UsageError(where, "its texts are names of files", "give paths as pathlib.Path, texts as str")
    return format.texts


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def write_memory(path: Path, data: object, format: MemoryFormat, *, encoding: str, where: str) -> None:
    """Write data down, all of it or nothing."""
    encoder = codecs.getincrementalencoder(encoding)()
    with files.atomic_write(path) as write:
        found = format.lines(data, where)
        while lines := list(islice(found, LINES)):
            try:
                write(encoder.encode("".join(lines)))
            except UnicodeEncodeError as error:
                raise DataError(where, f"can't be written as {encoding}: {error.reason}") from None
