"""Which records a split is: files, how they are read, and the part of them that is meant. Running text has no records: it is a
`Source`.

A share of the training data is taken off its end, or, where a format says which stratum each record belongs to (its label),
drawn over all strata alike, always the same: the records of a stratum are put in a shuffled order that never changes, those of
all strata are merged so that every stretch has its share of each, and train, valid and test are cut from that. So shares are
exact, no record is in two, and a stratum that is too small for all three is in train. Inside a split records come in the order
of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from weft.data.source import Row, RowCount, display_name, in_batches
from weft.data.table_rows import place_of
from weft.text.reading import FileSummary


class Record(Protocol):
    """One record of a file: a named tuple with its place."""

    @property
    def path(self) -> Path: ...

    @property
    def line(self) -> int:
        """Where it starts in that file, from 1."""


R = TypeVar("R", bound=Record)
Contra = TypeVar("Contra", bound=Record, contravariant=True)


class Summary(Protocol[Contra]):
    """What was found in files: shown to the user, so that a wrong guess is noticed early."""

    @property
    def files(self) -> FileSummary:
        """Line ends, encoding, notes; it counts no lines."""

    @property
    def count(self) -> int:
        """Records."""

    @property
    def characters(self) -> int:
        """Of all texts."""

    @property
    def crlf(self) -> int: ...

    def add(self, record: Contra) -> None: ...

    def bytes_of(self, column: str) -> int:
        """Of the texts of a column."""

    def describe(self) -> str:
        """Several lines for people."""

    def strata(self) -> np.ndarray | None:
        """int64 (N,): the stratum of each record; None: shares are taken off the end."""

    def fault(self) -> str | None:
        """Why nothing can be learned from these files, with their names; None where something can."""


class Format(Protocol[R]):
    """How files become records; one small class for each kind of data, beside its reader."""

    @property
    def encoding(self) -> str: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The texts of a record, as `texts` gives them: a corpus is called after each."""

    @property
    def rows(self) -> str:
        """What records are called in messages: "examples"."""

    @property
    def kept(self) -> bool:
        """Whether records stay in memory, since training asks for them again and again."""

    def files(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        """The files that are given, or that are in the folders that are."""

    def apart(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        """The file of each column, where each has its own; nothing where records are in one file."""

    def read(self, given: tuple[Path, ...], summary: FileSummary) -> Iterator[R]: ...

    def summary(self, given: tuple[Path, ...], summary: FileSummary) -> Summary[R]:
        """One that nothing was added to."""

    def texts(self, record: R) -> tuple[str, ...]: ...

    def shown(self, column: str) -> str:
        """What tells a column from others in messages; "" where there are none."""

    def provenance(self, given: tuple[Path, ...], column: str) -> dict[str, Any]:
        """What the texts of a column depend on, with a fingerprint of each file as `files`."""


def stratified_order(strata: np.ndarray) -> np.ndarray:
    """int64 (N,): an order of N things of which every stretch has its share of each stratum (N,), the same every time.

    The r-th of n in a stratum stands at (r + 1/2) / n of the way; a single one stands in the middle, far from the cuts.
    """
    # the raw stream of a bit generator never changes, as what is made of it may
    drawn = np.random.PCG64(0).random_raw(len(strata))
    order = np.lexsort((drawn, strata))
    _, sizes = np.unique(strata, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(strata)) - np.repeat(starts, sizes)
    way = (rank + 0.5) / np.repeat(sizes, sizes)
    return order[np.lexsort((drawn[order], way))]


class _Whole(NamedTuple, Generic[R]):
    records: list[R]  # none where they are read again
    summary: Summary[R]


@dataclass(frozen=True)
class Dataset(Generic[R]):
    """The part from `low` to `high`, shares of the records, of some files or folders."""

    given: tuple[Path, ...]
    format: Format[R]
    low: float = 0.0
    high: float = 1.0

    @property
    def name(self) -> str:
        """The files, for messages."""
        return " and ".join(map(str, self.format.apart(self.given))) or display_name(self.given)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        return self.format.files(self.given)

    def _fresh(self) -> FileSummary:
        return FileSummary(list(self.format.apart(self.given) or self.paths), self.format.encoding)

    @cached_property
    def _whole(self) -> _Whole[R]:
        """What all files hold, read once."""
        files = self._fresh()
        summary, kept = self.format.summary(self.given, files), list[R]()
        for record in self.format.read(self.given, files):
            summary.add(record)
            if self.format.kept:
                kept.append(record)
        return _Whole(kept, summary)

    @property
    def summary(self) -> Summary[R]:
        """What the whole files hold."""
        return self._whole.summary

    def _all(self) -> Iterator[R]:
        if self.format.kept:
            return iter(self._whole.records)
        return self.format.read(self.given, self._fresh())

    @cached_property
    def _chosen(self) -> tuple[int, int | None] | np.ndarray:
        """The first record that is meant and the one after the last; or bool (N,), which of all are."""
        if (self.low, self.high) == (0.0, 1.0):
            return 0, None
        total, rows = self.summary.count, self.format.rows
        start, stop = RowCount(self.name, total, rows, rows).span(self.low, self.high)
        strata = self.summary.strata()
        if strata is None:
            return start, stop
        chosen = np.zeros(total, dtype=bool)
        chosen[stratified_order(strata)[start:stop]] = True
        return chosen

    def records(self) -> Iterator[R]:
        """The records of the part, with their places."""
        chosen = self._chosen
        return compress(self._all(), chosen) if isinstance(chosen, np.ndarray) else islice(self._all(), *chosen)

    def rows(self) -> Iterator[Row]:
        """The texts of each record, with their files."""
        apart = self.format.apart(self.given)
        for record in self.records():
            texts = self.format.texts(record)
            yield Row(texts, apart or (record.path,) * len(texts), record.line)

    def place(self, number: int, column: str | None = None) -> str:
        """`file: line 7`, where a record, from 0, starts; files are read up to there."""
        record = next(islice(self.records(), number, None))
        apart = self.format.apart(self.given)
        path = apart[self.format.columns.index(column)] if apart and column is not None else record.path
        return place_of(path, record.line)

    def texts(self, column: str) -> Iterator[str]:
        """Those of one column."""
        at = self.format.columns.index(column)
        return (self.format.texts(record)[at] for record in self.records())

    def column(self, name: str, texts: Callable[[R], Iterable[str]] | None = None) -> TextColumn[R]:
        """What a corpus is made from: `texts` of each record, each of them a line; those that the format has by this name
        unless they are given."""
        return TextColumn(self, name, texts)


@dataclass(frozen=True)
class TextColumn(Generic[R]):
    """Some texts of each record, line by line: the one `Readable` of records."""

    of: Dataset[R]
    column: str
    read: Callable[[R], Iterable[str]] | None
    lines: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        if apart := self.of.format.apart(self.of.given):
            return (apart[self.of.format.columns.index(self.column)],)
        return self.of.paths

    @property
    def name(self) -> str:
        if self.of.format.apart(self.of.given):
            return str(self.paths[0])
        shown = self.of.format.shown(self.column)
        return f"{self.of.name} ({shown})" if shown else self.of.name

    def texts(self) -> Iterator[str]:
        if self.read is None:
            return self.of.texts(self.column)
        return chain.from_iterable(map(self.read, self.of.records()))

    def batches(self) -> Iterator[list[str]]:
        return in_batches(self.texts())

    def size(self) -> int:
        return int(self.of.summary.bytes_of(self.column) * (self.of.high - self.of.low))

    def provenance(self) -> dict[str, Any]:
        found = self.of.format.provenance(self.of.given, self.column)
        files = found.pop("files")
        return {**found, "lines": True, "low": self.of.low, "high": self.of.high, "files": files}
