"""Which labelled texts a split is, and the [data] table of tasks that give a text, or two, a label.

A share of the training data is drawn over all labels alike, always the same: the examples of a label are put in a shuffled
order that never changes, that of all labels are merged so that every stretch has its share of each, and train, valid and
test are cut from that. So shares are exact, no example is in two, and a label that is too rare for all three is in train.
Inside a split examples come in the order of the files.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import Table
from weft.data.columns import USUAL, Name, Wanted
from weft.data.corpus import Corpus
from weft.data.records import Used
from weft.data.rows import brief, kind_of
from weft.data.source import Counted, Row, called, fingerprints, in_batches
from weft.data.tables import Files, Split, check_splits, parts
from weft.errors import DataError
from weft.tasks.classification.files import File, Reading, Record, find_files, read_records
from weft.tasks.seq2seq.data import SideSeen
from weft.text.gate import SHOWN, Seen, as_paths, listed_files, many, shown

AS_USUAL = Reading()
LISTED = 10  # labels that are shown, and notes
OWN = 0.9  # labels an occurrence of one: from here on nearly every example has its own


class Example(NamedTuple):
    texts: tuple[str, ...]
    labels: tuple[str, ...]


def stratified(strata: np.ndarray) -> np.ndarray:
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


def listed(counts: Counter[str]) -> str:
    """'a 10, b 5 and 3 more', the most frequent first; 'a, b' where each occurs once."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    numbers = [f" {counts[name]:,}" if counts[names[0]] > 1 else "" for name in names]
    return ", ".join(shown(name, 40) + number for name, number in zip(names[:LISTED], numbers, strict=False)) + more


@dataclass
class LabelledSeen:
    """What was found in labelled files: shown to the user, so that a wrong guess is noticed early."""

    files: Seen  # line ends, encoding, notes, blank lines; it counts no lines
    given: tuple[Path, ...]
    sides: tuple[SideSeen, ...]
    count: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    examples: list[Example] = field(default_factory=list)
    sets: dict[tuple[str, ...], int] = field(default_factory=dict)  # all that occur, with their numbers
    numbers: array[int] = field(default_factory=lambda: array("q"))  # which of them each example has

    @property
    def characters(self) -> int:
        """Of all texts."""
        return sum(side.characters for side in self.sides)

    @property
    def crlf(self) -> int:
        return self.files.crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.labels.update(record.labels)
        self.numbers.append(self.sets.setdefault(record.labels, len(self.sets)))
        for side, text in zip(self.sides, record.texts, strict=True):
            side.add(text)
        if len(self.examples) < 3:
            self.examples.append(Example(tuple(text[: SHOWN + 1] for text in record.texts), record.labels))

    def strata(self) -> np.ndarray:
        """int64 (N,): each example's label, as a number; of several the rarest, which is hardest to share out."""
        places = {name: number for number, name in enumerate(self.labels, 1)}
        rarest = [min(labels, key=lambda name: (self.labels[name], name), default="") for labels in self.sets]
        found = np.array([places.get(name, 0) for name in rarest], dtype=np.int64)
        return np.asarray(found[np.asarray(self.numbers)])

    def notes(self) -> list[str]:
        """What is worth knowing."""
        told = self.files.notes[:LISTED]
        if len(self.files.notes) > LISTED:
            told.append(f"and {len(self.files.notes) - LISTED:,} such notes more")
        if self.files.blank:
            told.append(f"blank lines that were skipped: {self.files.blank:,}")
        told += [f"empty texts in column {at}: {side.empty:,}" for at, side in enumerate(self.sides, 1) if side.empty]
        if none := list(self.numbers).count(self.sets.get((), -1)):
            told.append(f"examples without a label: {none:,}")
        if len(self.sets) == 1:
            told.append("all examples have the same label; there is nothing to tell apart")
        elif self.count >= LISTED and 2 * len(self.labels) > self.count:
            told.append(f"{len(self.labels):,} labels for {self.count:,} examples; are they labels?")
        elif once := Counter({name: count for name, count in self.labels.items() if count == 1}):
            told.append(f"labels that occur once, {len(once):,} of {len(self.labels):,}: {listed(once)}")
        return told

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, labels, examples."""
        rows = [
            f"{listed_files(self.given)}: {many(self.count, 'example')} of {many(self.characters, 'character')} with"
            f" {many(len(self.labels), 'label')}, {self.files.written}"
        ]
        rows += [f"  note: {shown(note, 200)}" for note in self.notes()]
        rows.append(f"  labels: {listed(self.labels)}")
        for texts, labels in self.examples:
            rows.append(f"  e.g.: {' | '.join(map(shown, texts))} -> {shown(', '.join(labels) or 'no label')}")
        return "\n".join(rows)


@dataclass(frozen=True)
class LabelledSource:
    """The part from `low` to `high` (shares of the stratified order) of some files or folders."""

    given: tuple[Path, ...]
    reading: Reading = AS_USUAL
    low: float = 0.0
    high: float = 1.0

    @property
    def name(self) -> str:
        """The files, for messages."""
        return called(self.given)

    @cached_property
    def files(self) -> list[File]:
        """The files that are given, or that are in the folders that are."""
        return find_files(self.given)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(file.path for file in self.files)

    @cached_property
    def seen(self) -> LabelledSeen:
        """What the whole files hold, read once."""
        files = Seen(list(self.paths), self.reading.encoding)
        seen = LabelledSeen(files, self.given, tuple(SideSeen() for _ in self.reading.text))
        for record in read_records(self.files, self.reading, files):
            seen.add(record)
        self._note_folders(files)
        return seen

    def own_labels(self) -> str | None:
        """What is wrong where nearly every example has a label of its own, as it has if the column is one of numbers: none can
        be learned."""
        seen = self.seen
        if seen.count < LISTED or OWN * seen.labels.total() > len(seen.labels):
            return None
        some = ", ".join(shown(name, 20) for name in sorted(seen.labels)[:3])
        return (
            f"{self.name}: {len(seen.labels):,} labels for {seen.count:,} examples, {some} and so on: nearly every example has"
            f" a label of its own, and none can be learned; {self.label_place()}"
        )

    def label_place(self) -> str:
        """Where labels were read, for who finds that they are none."""
        if names := self.seen.files.columns:
            return f"is data.label = {self.reading.label!r} the right column? columns: {', '.join(brief(names))}"
        if any(kind_of(path) != "text" for path in self.paths):
            return "is data.label the right column?"
        return "a line is read as a label, white space, and a text"

    def refuse_own_labels(self) -> None:
        if fault := self.own_labels():
            raise DataError(fault)

    def _note_folders(self, files: Seen) -> None:
        for path in self.given:
            if path.is_dir():
                whole = any(file.whole and file.path.is_relative_to(path) for file in self.files)
                kinds = ("a folder", "file") if whole else ("a file", "line")
                files.notes.append(f"{path.name}: {kinds[0]} for every label, every {kinds[1]} in it is an example")

    @cached_property
    def _chosen(self) -> np.ndarray | None:
        """bool (N,): which of all examples are meant; None where all are."""
        if (self.low, self.high) == (0.0, 1.0):
            return None
        total = self.seen.count
        start, stop = Counted(self.name, total, "examples", "examples").span(self.low, self.high)
        chosen = np.zeros(total, dtype=bool)
        chosen[stratified(self.seen.strata())[start:stop]] = True
        return chosen

    def records(self) -> Iterator[Record]:
        """The examples of the part, with their places."""
        chosen = self._chosen
        records = read_records(self.files, self.reading, Seen(list(self.paths), self.reading.encoding))
        return records if chosen is None else compress(records, chosen)

    def examples(self) -> Iterator[Example]:
        for record in self.records():
            yield Example(record.texts, record.labels)

    def labels(self) -> list[tuple[str, ...]]:
        """The labels of every example."""
        return [record.labels for record in self.records()]

    def rows(self) -> Iterator[Row]:
        for record in self.records():
            yield Row(record.texts, (record.path,) * len(record.texts), record.line)

    def place(self, number: int) -> str:
        """`file: line 7`, where an example, from 0, starts; the files are read up to there."""
        record = next(islice(self.records(), number, None))
        return f"{record.path}: line {record.line}"

    def side(self, at: int) -> TextSide:
        """The texts of column `at`, 0 or 1."""
        return TextSide(self, at)


@dataclass(frozen=True)
class TextSide:
    """The first or the second texts of examples, line by line: what a corpus is made from."""

    of: LabelledSource
    at: int
    lines: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.of.paths

    @property
    def name(self) -> str:
        columns = self.of.reading.text
        return self.of.name if len(columns) == 1 else f"{self.of.name} ({columns[self.at]})"

    @property
    def seen(self) -> SideSeen:
        """What this side of the whole files holds."""
        return self.of.seen.sides[self.at]

    def texts(self) -> Iterator[str]:
        for record in self.of.records():
            yield record.texts[self.at]

    def batches(self) -> Iterator[list[str]]:
        return in_batches(self.texts())

    def size(self) -> int:
        return int(self.seen.bytes * (self.of.high - self.of.low))

    def origin(self) -> dict[str, Any]:
        # labels decide which examples a share has, and names of files may be labels
        how = {**asdict(self.of.reading), "text": list(self.of.reading.text)}
        labels = [{} if file.label is None else {"label": file.label} for file in self.of.files]
        files = [found | label for found, label in zip(fingerprints(self.paths), labels, strict=True)]
        return {"column": self.at, **how, "lines": True, "low": self.of.low, "high": self.of.high, "files": files}


def count_long(corpora: Sequence[Corpus], source: LabelledSource, *, longest: int, truncate: bool) -> int:
    """How many examples, with a corpus for each column, have more than `longest` tokens and will be cut; <s> and every </s>
    count. Without `truncate` they are refused, with the place of the first."""
    lengths = 1 + np.sum([np.diff(corpus.line_starts()) for corpus in corpora], axis=0)
    long = np.flatnonzero(lengths > longest)
    if len(long) and not truncate:
        place, more = source.place(int(long[0])), f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{place}{more}: has {lengths[long[0]]:,} tokens, more than data.longest = {longest};"
            " raise that, or set data.truncate = true to have it cut"
        )
    return len(long)


class LabelledTable(Table):
    """Which labelled texts, and how they are read."""

    train: Files
    valid: Split = None  # files, or a share of train, drawn over all labels alike
    test: Split = None  # likewise
    encoding: str = "utf-8"
    # columns of tables: keys of JSONL, names in the first line, or places, from 1; of two texts a list
    text: Name | list[Name] = "text"
    label: Name = "label"
    multi: bool = False  # an example may have several labels, or none
    separator: str | None = None  # between them; "," unless given
    coarse: str | None = None  # what follows it in a label is dropped: with ":" DESC:manner is DESC
    longest: int = Field(1000, ge=4, le=2**31 - 1)  # tokens of an example, of both texts, <s> and </s> among them
    truncate: bool = True  # cut what is longer, instead of refusing it

    @model_validator(mode="after")
    def fits(self) -> Self:
        check_splits(self.train, self.valid, self.test, self.encoding)
        columns = self.columns()
        if not 1 <= len(columns) <= 2:
            raise ValueError(f"text names {len(columns)} columns; give one, or two for pairs of texts")
        named = [("label", self.label), *(("text", column) for column in columns)]
        for name, column in named:
            if column == "" or (isinstance(column, int) and column < 1):
                raise ValueError(f"{name}={column!r} names no column; give a name, or a place from 1 on")
        if len({type(column) for _, column in named}) > 1:
            raise ValueError("text and label mix names and places; a table has a header or it has none")
        if len({column for _, column in named}) < len(named):
            raise ValueError("text and label name one column twice; give each its own")
        for name, mark in (("separator", self.separator), ("coarse", self.coarse)):
            if mark == "":
                raise ValueError(f"{name}='' separates nothing; drop it")
        if self.separator is not None and not self.multi:
            raise ValueError(f"separator={self.separator!r}, but multi=false has one label an example; drop it")
        return self

    def columns(self) -> tuple[Name, ...]:
        """Those of the texts, one or two."""
        return tuple(self.text) if isinstance(self.text, list) else (self.text,)

    def used(self) -> Used:
        """What a trained run reads of a table: its texts."""
        wanted = tuple(Wanted("text", column) for column in self.columns())
        usual = (Wanted("label", self.label), *wanted) == USUAL
        return Used(wanted, USUAL if usual else (), self.separator or ",")

    def resolved(self) -> Self:
        """The same with every option that applies filled in."""
        if not self.multi or self.separator is not None:
            return self
        return self.model_copy(update={"separator": ","})

    def sources(self, base: Path) -> dict[str, LabelledSource]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        separator = self.separator or ","
        reading = Reading(self.encoding, self.columns(), self.label, self.multi, separator, self.coarse)
        return {
            name: LabelledSource(tuple(base / path for path in as_paths(files)), reading, low, high)
            for name, (files, low, high) in parts(self.train, self.valid, self.test).items()
        }
