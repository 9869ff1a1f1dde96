"""Data sets of records: files, their format, and a fraction of them. Running text has no records: it is a `Source`.

A fraction of the training data is taken from its end. If the format assigns each record to a stratum (its label), the split is
stratified and deterministic: the records of each stratum are shuffled with a fixed seed, the strata are merged so that every
range has its fraction of each, and the result is divided into train, valid and test. So fractions are exact, no record is in
two splits, and a stratum that is too small for all three is in train. Within a split, records keep the order of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from weft.data.source import Row, RowCount, display_name, in_batches, provenance_of_range, range_size
from weft.data.table_rows import file_location
from weft.text.reading import FileSummary


class Record(Protocol):
    """A named tuple with the location of the record."""

    @property
    def path(self) -> Path: ...

    @property
    def line(self) -> int:
        """First line of the record, from 1."""


R = TypeVar("R", bound=Record)
Contra = TypeVar("Contra", bound=Record, contravariant=True)


class Summary(Protocol[Contra]):
    """A summary of data files, printed so that a wrong assumption about the format is noticed early."""

    @property
    def files(self) -> FileSummary:
        """Line endings, encoding and notes; the line count is not used."""

    @property
    def count(self) -> int:
        """Number of records."""

    @property
    def characters(self) -> int:
        """Number of characters in all texts."""

    @property
    def num_crlf(self) -> int:
        """Number of CRLF line endings."""

    def add(self, record: Contra) -> None: ...

    def bytes_of(self, column: str) -> int:
        """Number of bytes in the texts of a column."""

    def describe(self) -> str:
        """A description in several lines."""

    def strata(self) -> np.ndarray | None:
        """int64 (N,): stratum of each record; None: fractions are taken from the end."""

    def problem(self) -> str | None:
        """The reason why a model cannot learn from these files, with their names; None if it can."""


class Format(Protocol[R]):
    """Reads files as records. Each task has a small class for its format, next to its reader."""

    @property
    def encoding(self) -> str: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the texts of a record, in the order of `texts`. Each becomes a corpus of this name."""

    @property
    def rows(self) -> str:
        """Noun for records in messages, e.g. "examples"."""

    @property
    def in_memory(self) -> bool:
        """Whether to cache all records in memory, because training reads them repeatedly."""

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        """The input files, with directories replaced by the files in them."""

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        """The file of each column, for parallel files; () if each file has complete records."""

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[R]: ...

    def summary(self, inputs: tuple[Path, ...], summary: FileSummary) -> Summary[R]:
        """An empty summary."""

    def texts(self, record: R) -> tuple[str, ...]: ...

    def column_label(self, column: str) -> str:
        """The name of a column in messages; "" if there is only one."""

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        """Everything that the texts of a column depend on; `files` has a fingerprint per file."""


def stratified_order(strata: np.ndarray) -> np.ndarray:
    """int64 (N,): a deterministic order in which every range has its fraction of each stratum, given `strata` (N,).

    Item r of n in a stratum gets the relative position (r + 1/2) / n. So a single item is in the middle, far from the ends.
    """
    # the raw stream of a bit generator never changes between NumPy versions, unlike the distributions
    random = np.random.PCG64(0).random_raw(len(strata))
    order = np.lexsort((random, strata))
    _, sizes = np.unique(strata, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(strata)) - np.repeat(starts, sizes)
    position = (rank + 0.5) / np.repeat(sizes, sizes)
    return order[np.lexsort((random[order], position))]


class _Contents(NamedTuple, Generic[R]):
    records: list[R]  # empty if the format does not keep records in memory
    summary: Summary[R]


@dataclass(frozen=True)
class Dataset(Generic[R]):
    """The records of files or directories from fraction `low` to fraction `high`, without those of an inner range."""

    inputs: tuple[Path, ...]
    format: Format[R]
    low: float = 0.0
    high: float = 1.0
    without: tuple[float, float] | None = None
    whole: Dataset[R] | None = field(default=None, compare=False, repr=False)  # all records of these files, read for all splits

    @property
    def fraction(self) -> float:
        """The fraction of the files that the split has."""
        return range_size(self.low, self.high, self.without)

    @property
    def name(self) -> str:
        """File names for messages."""
        return " and ".join(map(str, self.format.column_files(self.inputs))) or display_name(self.inputs)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        return self.format.files(self.inputs)

    def _new_summary(self) -> FileSummary:
        return FileSummary(list(self.format.column_files(self.inputs) or self.paths), self.format.encoding)

    @cached_property
    def _contents(self) -> _Contents[R]:
        """Records and summary of all files, read once."""
        whole = self.whole
        if whole is not None and whole.inputs == self.inputs and whole.format is self.format:
            return whole._contents
        files = self._new_summary()
        summary, records = self.format.summary(self.inputs, files), list[R]()
        for record in self.format.read(self.inputs, files):
            summary.add(record)
            if self.format.in_memory:
                records.append(record)
        return _Contents(records, summary)

    @property
    def summary(self) -> Summary[R]:
        """Summary of the whole files, not only of the split."""
        return self._contents.summary

    def _all_records(self) -> Iterator[R]:
        if self.format.in_memory:
            return iter(self._contents.records)
        return self.format.read(self.inputs, self._new_summary())

    @cached_property
    def _selection(self) -> np.ndarray | None:
        """A mask of the records of the split, bool (N,); None if it has all of them."""
        if self.fraction == 1.0:
            return None
        total, rows = self.summary.count, self.format.rows
        count = RowCount(self.name, total, rows, rows)
        strata = self.summary.strata()
        order = np.arange(total) if strata is None else stratified_order(strata)
        is_selected = np.zeros(total, dtype=bool)
        is_selected[order[slice(*count.span(self.low, self.high))]] = True
        if self.without is not None:
            is_selected[order[slice(*count.span(*self.without))]] = False
        return is_selected

    def records(self) -> Iterator[R]:
        """The records of the split."""
        selection = self._selection
        if selection is None:
            return self._all_records()
        return compress(self._all_records(), selection)

    def rows(self) -> Iterator[Row]:
        """The texts of each record, with their files."""
        column_files = self.format.column_files(self.inputs)
        for record in self.records():
            texts = self.format.texts(record)
            yield Row(texts, column_files or (record.path,) * len(texts), record.line)

    def location(self, index: int, column: str | None = None) -> str:
        """`file:line` of a record. Reads the files up to that record."""
        record = next(islice(self.records(), index, None))
        column_files = self.format.column_files(self.inputs)
        path = column_files[self.format.columns.index(column)] if column_files and column is not None else record.path
        return file_location(path, record.line)

    def texts(self, column: str) -> Iterator[str]:
        """The texts of one column."""
        index = self.format.columns.index(column)
        return (self.format.texts(record)[index] for record in self.records())

    def column(self, name: str, texts: Callable[[R], Iterable[str]] | None = None) -> TextColumn[R]:
        """A column as the input of a corpus, one text per line. `texts` extracts the texts of a record; default: the text of
        the column `name`."""
        return TextColumn(self, name, texts)


@dataclass(frozen=True)
class TextColumn(Generic[R]):
    """A `Readable` of the texts of each record, one per line."""

    dataset: Dataset[R]
    column: str
    read: Callable[[R], Iterable[str]] | None
    lines: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        if column_files := self.dataset.format.column_files(self.dataset.inputs):
            return (column_files[self.dataset.format.columns.index(self.column)],)
        return self.dataset.paths

    @property
    def name(self) -> str:
        if self.dataset.format.column_files(self.dataset.inputs):
            return str(self.paths[0])
        label = self.dataset.format.column_label(self.column)
        return f"{self.dataset.name} ({label})" if label else self.dataset.name

    def texts(self) -> Iterator[str]:
        if self.read is None:
            return self.dataset.texts(self.column)
        return chain.from_iterable(map(self.read, self.dataset.records()))

    def batches(self) -> Iterator[list[str]]:
        return in_batches(self.texts())

    def size(self) -> int:
        return int(self.dataset.summary.bytes_of(self.column) * self.dataset.fraction)

    def provenance(self) -> dict[str, Any]:
        provenance = self.dataset.format.provenance(self.dataset.inputs, self.column)
        files = provenance.pop("files")
        ranges = provenance_of_range(self.dataset.low, self.dataset.high, self.dataset.without)
        return {**provenance, "lines": True, **ranges, "files": files}
