"""Which pairs a split is, and the [data] table of tasks that turn one text into another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import Table
from weft.data.columns import Wanted
from weft.data.corpus import Corpus
from weft.data.records import Used
from weft.data.rows import kind_of
from weft.data.source import Counted, Row, called, fingerprints, in_batches
from weft.data.tables import Files, Split, check_splits, parts
from weft.errors import DataError
from weft.tasks.seq2seq.files import DEFAULT, Columns, Record, read_records
from weft.text.gate import SHOWN, Seen, as_paths, listed_files, shown

Which = Literal["source", "target"]
SIDES: tuple[Which, Which] = ("source", "target")


@dataclass
class SideSeen:
    """What one side of all pairs holds."""

    empty: int = 0
    characters: int = 0
    bytes: int = 0

    def add(self, text: str) -> None:
        self.empty += not text
        self.characters += len(text)
        self.bytes += len(text) if text.isascii() else len(text.encode())


@dataclass
class PairsSeen:
    """What was found in files of pairs: shown to the user, so that a wrong guess is noticed early."""

    files: Seen  # line ends, encoding, notes; it counts no lines
    pairs: int = 0
    source: SideSeen = field(default_factory=SideSeen)
    target: SideSeen = field(default_factory=SideSeen)
    examples: list[tuple[str, str]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        """Of both sides."""
        return self.source.characters + self.target.characters

    @property
    def crlf(self) -> int:
        return self.files.crlf

    def add(self, source: str, target: str) -> None:
        self.pairs += 1
        self.source.add(source)
        self.target.add(target)
        if len(self.examples) < 3 and source.strip() and target.strip():
            self.examples.append((source[: SHOWN + 1], target[: SHOWN + 1]))

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {self.pairs:,} pairs of {self.source.characters:,} and"
            f" {self.target.characters:,} characters, {self.files.written}"
        ]
        sides = (("sources", self.source), ("targets", self.target))
        empty = [f"empty {name}: {side.empty:,}" for name, side in sides if side.empty]
        blank = [f"blank lines that were skipped: {self.files.blank:,}"] if self.files.blank else []
        rows += [f"  note: {shown(note, 200)}" for note in [*self.files.notes, *blank, *empty]]
        rows += [f"  e.g.: {shown(source)} -> {shown(target)}" for source, target in self.examples]
        return "\n".join(rows)


@dataclass(frozen=True)
class PairSource:
    """The part from `low` to `high` (shares of the pairs) of some tables, or of two parallel files; `others` are columns, and
    files after the first two are files, of further references, which only `references` reads."""

    paths: tuple[Path, ...]
    encoding: str = "utf-8"
    columns: Columns = DEFAULT
    low: float = 0.0
    high: float = 1.0
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The files, for messages."""
        if self.parallel:
            return f"{self.paths[0]} and {self.paths[1]}"
        return called(self.paths)

    @property
    def parallel(self) -> bool:
        """Whether the sides are files of their own."""
        return kind_of(self.paths[0]) == "text"

    @property
    def _of_pairs(self) -> tuple[Path, ...]:
        """The files without those of further references."""
        return self.paths[:2] if self.parallel else self.paths

    @cached_property
    def seen(self) -> PairsSeen:
        """What the whole files hold, read once."""
        seen = PairsSeen(Seen(list(self._of_pairs), self.encoding))
        for record in read_records(self._of_pairs, self.columns, self.encoding, seen.files):
            seen.add(record.source, record.target)
        return seen

    def records(self) -> Iterator[Record]:
        """The pairs of the part, with their places."""
        seen = Seen(list(self._of_pairs), self.encoding)
        return islice(read_records(self._of_pairs, self.columns, self.encoding, seen), *self._span())

    def _span(self) -> tuple[int, int | None]:
        if (self.low, self.high) == (0.0, 1.0):
            return 0, None
        return Counted(self.name, self.seen.pairs, "pairs", "pairs").span(self.low, self.high)

    def pairs(self) -> Iterator[tuple[str, str]]:
        for record in self.records():
            yield record.source, record.target

    def references(self) -> Iterator[tuple[str, ...]]:
        """What outputs are scored against: the target of each pair and its further references. Of several, an empty one is
        none, unless all are empty."""
        if self.parallel:
            further = [replace(self, paths=(self.paths[0], path)) for path in self.paths[2:]]
        else:
            further = [replace(self, columns=(self.columns[0], column)) for column in self.others]
        for some in zip(*(part.side("target").texts() for part in [self, *further]), strict=True):
            yield tuple(text for text in some if text.strip()) or some[:1]

    def rows(self) -> Iterator[Row]:
        for record in self.records():
            paths = self._of_pairs if self.parallel else (record.path, record.path)
            yield Row((record.source, record.target), paths, record.line)

    def place(self, number: int, which: Which = "source") -> str:
        """`file: line 7`, where a pair, from 0, starts; the files are read up to there."""
        row = next(islice(self.rows(), number, None))
        return f"{row.paths[SIDES.index(which)]}: line {row.line}"

    def side(self, which: Which) -> Side:
        return Side(self, which)


@dataclass(frozen=True)
class Side:
    """The sources or the targets of pairs, line by line: what a corpus is made from."""

    of: PairSource
    which: Which
    lines: bool = True

    @property
    def _index(self) -> int:
        return SIDES.index(self.which)

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.of.paths[self._index : self._index + 1] if self.of.parallel else self.of.paths

    @property
    def name(self) -> str:
        return str(self.paths[0]) if self.of.parallel else f"{self.of.name} ({self.which})"

    @property
    def seen(self) -> SideSeen:
        """What this side of the whole files holds."""
        return self.of.seen.source if self.which == "source" else self.of.seen.target

    def texts(self) -> Iterator[str]:
        for pair in self.of.pairs():
            yield pair[self._index]

    def batches(self) -> Iterator[list[str]]:
        return in_batches(self.texts())

    def size(self) -> int:
        return int(self.seen.bytes * (self.of.high - self.of.low))

    def origin(self) -> dict[str, Any]:
        part = {"encoding": self.of.encoding, "lines": True, "low": self.of.low, "high": self.of.high}
        column = {} if self.of.parallel else {"column": self.of.columns[self._index]}
        return {"side": self.which, **column, **part, "files": fingerprints(self.paths)}


def fit(corpus: Corpus, side: Side, *, longest: int, truncate: bool) -> Corpus:
    """The corpus of a side, of which no line has more than `longest` tokens: what is longer is refused with its place, or
    cut before its </s>. What was cut is in memory, all else stays on disk."""
    starts = corpus.line_starts()
    lengths = np.diff(starts)
    long = np.flatnonzero(lengths > longest)
    if not len(long):
        return corpus
    if not truncate:
        place, more = side.of.place(int(long[0]), side.which), f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{place}{more}: its {side.which} has {lengths[long[0]]:,} tokens, more than data.longest = {longest};"
            " raise that, or set data.truncate = true to have it cut"
        )
    kept = np.ones(len(corpus.tokens), dtype=bool)
    for line in long.tolist():
        kept[starts[line] + longest - 1 : starts[line + 1] - 1] = False
    ends = np.concatenate([[0], np.cumsum(np.minimum(lengths, longest))])
    # a line counts its whole text still: losses per character are those of what was to be read
    marks = np.concatenate([ends[:, None], corpus.marks[:, 1:]], axis=1)
    return replace(corpus, tokens=corpus.tokens[kept], starts=ends, marks=marks)


def _check_kinds(name: str, paths: list[Path]) -> None:
    kinds = {kind_of(path) for path in paths}
    if len(kinds) > 1:
        raise ValueError(f"{name} mixes {', '.join(sorted(kinds))} files; give files of one kind")
    if kinds == {"text"} and len(paths) < 2:
        raise ValueError(
            f"{name}={paths[0].name!r} is no .tsv, .csv, .jsonl or .json: name a table so,"
            f' or give two parallel files, {name} = ["a.en", "a.de"]'
        )


class PairsTable(Table):
    """Which pairs, and how they are read."""

    train: Files
    valid: Split = None  # files, or the share of train that is taken off its end
    test: Split = None  # likewise; the order is train, valid, test
    encoding: str = "utf-8"
    # columns of tables: keys of JSONL, or names in the first line; without such a line the first two columns
    source: str = "source"
    target: str | list[str] = "target"  # of several, training reads the first, and scores know all as references
    longest: int = Field(1000, ge=2, le=2**31 - 1)  # tokens of a side, </s> among them
    truncate: bool = False  # cut what is longer, instead of refusing it

    @model_validator(mode="after")
    def fits(self) -> Self:
        check_splits(self.train, self.valid, self.test, self.encoding)
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        paths = {name: as_paths(files) for name, files in named.items() if isinstance(files, str | list)}
        for name, found in paths.items():
            _check_kinds(name, found)
        tables = any(kind_of(found[0]) != "text" for found in paths.values())
        for name, column in (("source", self.source), ("target", self.target)):
            if not column or (isinstance(column, list) and "" in column):
                raise ValueError(f"{name}={[] if column == [] else ''!r} names no column")
            if column != name and not tables:
                raise ValueError(f"{name}={column!r}, but parallel files have no columns; drop it")
        if twice := [column for column in self.targets() if self.targets().count(column) > 1]:
            raise ValueError(f"target names the column {twice[0]!r} twice; name each reference once")
        return self

    def targets(self) -> list[str]:
        """The columns of targets: the first to learn from, all as references."""
        return [self.target] if isinstance(self.target, str) else self.target

    def used(self, *, targets: bool = False) -> Used:
        """What a trained run reads of a table: its sources, and its (first) targets if they are wanted."""
        columns = (Wanted("source", self.source), Wanted("target", self.targets()[0]))
        usual = (self.source, self.target) == DEFAULT
        return Used(columns if targets else columns[:1], columns if usual else ())

    def resolved(self) -> Self:
        """The same with every option that applies filled in: all of them do."""
        return self

    def sources(self, base: Path) -> dict[str, PairSource]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        first, *others = self.targets()
        columns, more = (self.source, first), tuple(others)
        return {
            name: PairSource(tuple(base / path for path in as_paths(files)), self.encoding, columns, low, high, more)
            for name, (files, low, high) in parts(self.train, self.valid, self.test).items()
        }
