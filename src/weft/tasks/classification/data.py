"""Which labelled texts a split is, and the [data] table of tasks that give a text, or two, a label."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import Table
from weft.data.columns import USUAL, Name, Wanted
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import Checked, CheckPlan
from weft.data.memory import MemoryFormat
from weft.data.records import Used
from weft.data.rows import brief, kind_of
from weft.data.source import called, fingerprints
from weft.data.summary import LISTED, ColumnSize, listed
from weft.data.tables import Delimiter, Files, Sheet, Split, check_splits, datasets, training
from weft.errors import DataError
from weft.models.baseline_tables import BaselineTable
from weft.tasks.classification.files import Reading, Record, find_files, read_records
from weft.tasks.data_spec import Column, Fitted
from weft.tasks.vocabulary import all_texts
from weft.text.gate import SHOWN, Seen, listed_files, many, shown
from weft.text.labelled_tokens import LabelledTokens, load_labelled
from weft.text.labels import Labels
from weft.text.tokenizers import train_tokenizer

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.tasks.data_spec import Note, Watched

AS_USUAL = Reading()
OWN = 0.9  # labels an occurrence of one: from here on nearly every example has its own


@dataclass
class LabelledSummary:
    """What was found in labelled files."""

    files: Seen  # line ends, encoding, notes, blank lines; it counts no lines
    given: tuple[Path, ...]
    reading: Reading
    sizes: tuple[ColumnSize, ...]
    folders: list[str]  # notes on those that are given
    count: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)  # texts and labels
    sets: dict[tuple[str, ...], int] = field(default_factory=dict)  # all that occur, with their numbers
    numbers: array[int] = field(default_factory=lambda: array("q"))  # which of them each example has

    @property
    def characters(self) -> int:
        """Of all texts."""
        return sum(size.characters for size in self.sizes)

    @property
    def crlf(self) -> int:
        return self.files.crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.labels.update(record.labels)
        self.numbers.append(self.sets.setdefault(record.labels, len(self.sets)))
        for size, text in zip(self.sizes, record.texts, strict=True):
            size.add(text)
        if len(self.examples) < 3:
            self.examples.append((tuple(text[: SHOWN + 1] for text in record.texts), record.labels))

    def bytes_of(self, column: str) -> int:
        return self.sizes[int(column)].bytes

    def strata(self) -> np.ndarray:
        """int64 (N,): each example's label, as a number; of several the rarest, which is hardest to share out."""
        places = {name: number for number, name in enumerate(self.labels, 1)}
        rarest = [min(labels, key=lambda name: (self.labels[name], name), default="") for labels in self.sets]
        found = np.array([places.get(name, 0) for name in rarest], dtype=np.int64)
        return np.asarray(found[np.asarray(self.numbers)])

    def fault(self) -> str | None:
        """What is wrong where nearly every example has a label of its own, as it has if the column is one of numbers: none can
        be learned."""
        if self.count < LISTED or OWN * self.labels.total() > len(self.labels):
            return None
        some = ", ".join(shown(name, 20) for name in sorted(self.labels)[:3])
        return (
            f"{called(self.given)}: {len(self.labels):,} labels for {self.count:,} examples, {some} and so on: nearly every"
            f" example has a label of its own, and none can be learned; {self.label_place()}"
        )

    def label_place(self) -> str:
        """Where labels were read, for who finds that they are none."""
        if names := self.files.columns:
            return f"is data.label = {self.reading.label!r} the right column? columns: {', '.join(brief(names))}"
        if any(kind_of(path) != "text" for path in self.files.paths):
            return "is data.label the right column?"
        return "a line is read as a label, white space, and a text"

    def skipped_notes(self) -> tuple[str, ...]:
        """What was left out, where something was."""
        count, first = self.files.skipped, self.files.first_skipped
        return (f"examples without a text that were skipped: {count:,}, the first at {first}",) if count else ()

    def notes(self) -> list[str]:
        """What is worth knowing."""
        found = [*self.files.notes, *self.folders]
        told = found[:LISTED]
        if len(found) > LISTED:
            told.append(f"and {len(found) - LISTED:,} such notes more")
        if self.files.blank:
            told.append(f"blank lines that were skipped: {self.files.blank:,}")
        told += self.skipped_notes()
        told += [f"empty texts in column {at}: {size.empty:,}" for at, size in enumerate(self.sizes, 1) if size.empty]
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
class LabelledFormat:
    """Texts with labels: a corpus for each column of texts, called 0 and 1."""

    reading: Reading = AS_USUAL
    skip_empty: bool = True  # no part of the origin of a corpus: files that are read either way give the same one
    rows: str = "examples"
    kept: bool = False

    @property
    def encoding(self) -> str:
        return self.reading.encoding

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(str(at) for at in range(len(self.reading.text)))

    def files(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(file.path for file in find_files(given))

    def apart(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, given: tuple[Path, ...], seen: Seen) -> Iterator[Record]:
        return read_records(find_files(given), self.reading, seen, skip_empty=self.skip_empty)

    def summary(self, given: tuple[Path, ...], seen: Seen) -> LabelledSummary:
        return LabelledSummary(seen, given, self.reading, tuple(ColumnSize() for _ in self.reading.text), _folders(given))

    def texts(self, record: Record) -> tuple[str, ...]:
        return record.texts

    def shown(self, column: str) -> str:
        return str(self.reading.text[int(column)]) if len(self.reading.text) > 1 else ""

    def origin(self, given: tuple[Path, ...], column: str) -> dict[str, Any]:
        # labels decide which examples a share has, and names of files may be labels
        how, found = {**self.reading.origin(), "text": list(self.reading.text)}, find_files(given)
        labels = [{} if file.label is None else {"label": file.label} for file in found]
        prints = fingerprints([file.path for file in found])
        return {"column": int(column), **how, "files": [one | label for one, label in zip(prints, labels, strict=True)]}


def _folders(given: tuple[Path, ...]) -> list[str]:
    """How folders are read."""
    notes = []
    for path in given:
        if path.is_dir():
            kinds = ("a folder", "file") if any(file.whole for file in find_files([path])) else ("a file", "line")
            notes.append(f"{path.name}: {kinds[0]} for every label, every {kinds[1]} in it is an example")
    return notes


def labels_of(dataset: Dataset[Record]) -> list[tuple[str, ...]]:
    """The labels of every example."""
    return [record.labels for record in dataset.records()]


def count_long(corpora: Sequence[Corpus], dataset: Dataset[Record], *, longest: int, truncate: bool) -> int:
    """How many examples, with a corpus for each column, have more than `longest` tokens and will be cut; <s> and every </s>
    count. Without `truncate` they are refused, with the place of the first."""
    lengths = 1 + np.sum([np.diff(corpus.line_starts()) for corpus in corpora], axis=0)
    long = np.flatnonzero(lengths > longest)
    if len(long) and not truncate:
        place, more = dataset.place(int(long[0])), f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
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
    delimiter: Delimiter = None  # between the columns of .csv and .tsv, if not what their first line shows; or "tab"
    sheet: Sheet = None  # of .xlsx: a name, or a place from 1; the first, unless given
    # columns of tables: keys of JSONL, names in the first line, or places, from 1; of two texts a list
    text: Name | list[Name] = "text"
    label: Name = "label"
    multi: bool = False  # an example may have several labels, or none
    separator: str | None = None  # between them; "," unless given
    coarse: str | None = None  # what follows it in a label is dropped: with ":" DESC:manner is DESC
    longest: int = Field(1000, ge=4, le=2**31 - 1)  # tokens of an example, of both texts, <s> and </s> among them
    truncate: bool = True  # cut what is longer, instead of refusing it
    skip_empty: bool = True  # leave out examples without a text, instead of refusing them

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

    def reading(self) -> Reading:
        joint = self.separator or ","
        return Reading(self.encoding, self.columns(), self.label, self.multi, joint, self.coarse, self.delimiter, self.sheet)

    def used(self) -> Used:
        """What a trained run reads of a table: its texts."""
        wanted = tuple(Wanted("text", column) for column in self.columns())
        usual = (Wanted("label", self.label), *wanted) == USUAL
        return Used(wanted, USUAL if usual else (), self.separator or ",", self.reading().tables())

    def resolved(self) -> Self:
        """The same with every option that applies filled in."""
        if not self.multi or self.separator is not None:
            return self
        return self.model_copy(update={"separator": ","})

    def sources(self, base: Path) -> dict[str, Dataset[Record]]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        return datasets(base, LabelledFormat(self.reading(), self.skip_empty), self.train, self.valid, self.test)


# ---- tokens


class LabelledVocabulary:
    """A tokenizer for all columns, and the labels of training."""

    def make(self, settings: Settings, dataset: Dataset[Record], watched: Watched, note: Note) -> LabelledTokens:
        if fault := dataset.seen.fault():
            raise DataError(fault)
        tokenizer = train_tokenizer(settings.tokenizer, watched(all_texts(dataset)))
        return LabelledTokens(tokenizer, Labels.count(chain.from_iterable(labels_of(dataset))))

    def save(self, vocabulary: LabelledTokens, folder: Path) -> None:
        vocabulary.save(folder)

    def load(self, folder: Path) -> LabelledTokens:
        return load_labelled(folder)


def columns(settings: Settings, vocabulary: LabelledTokens) -> list[Column]:
    """One of each text of an example; none for baselines, which have terms of their own, and read a text to its end."""
    if isinstance(settings.model, BaselineTable):
        return []
    return [Column(str(at), vocabulary.tokenizer) for at in range(len(settings.data.columns()))]


def fit(settings: Settings, dataset: Dataset[Record], corpora: Sequence[Corpus]) -> Fitted:
    longest = settings.data.longest
    cut = count_long(corpora, dataset, longest=longest, truncate=settings.data.truncate)
    verb = "is" if cut == 1 else "are"
    told = f"{many(cut, 'text')} {verb} longer than data.longest = {longest} tokens, and {verb} cut"
    return Fitted(corpora, told if cut else None)


def check(settings: Settings) -> CheckPlan:
    data, train = settings.data, training(settings.datasets)
    names = tuple(map(str, data.columns()))
    sides = names if len(names) > 1 else ("text",)
    checked = Checked(sides, data.longest, data.truncate, labels="label", labels_of=lambda record: record.labels)
    unread = isinstance(settings.model, BaselineTable)  # terms, and texts of any length
    return CheckPlan(checked, lambda: [] if unread else [train_tokenizer(settings.tokenizer, all_texts(train))] * len(names))


def lines(dataset: Dataset[Record]) -> Iterator[tuple[str, None]]:
    return (("\t".join(record.texts), None) for record in dataset.records())


def in_memory(table: LabelledTable) -> MemoryFormat:
    """A text, or two, and the label; where an example may have several, a list of them."""
    return MemoryFormat((*table.columns(), table.label), inputs=len(table.columns()))
