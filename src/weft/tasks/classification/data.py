"""Labeled texts: splits, summaries, and the [data] table of classification."""

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

from weft.config import invalid
from weft.data.columns import DEFAULT_NAMES, Name, WantedColumn
from weft.data.config import TableFilesConfig, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.input_records import ColumnUse
from weft.data.memory import MemoryFormat
from weft.data.source import display_name, fingerprints
from weft.data.summary import MAX_LISTED, ColumnSize, listed
from weft.data.table_rows import kind_of, preview_cells
from weft.errors import DataError
from weft.models.baseline_config import BaselineConfig
from weft.tasks.classification.files import Reading, Record, find_files, read_records
from weft.tasks.data_spec import Column, SplitCorpora
from weft.tasks.vocabulary import all_texts
from weft.text.label_tokenizer import LabelTokenizer, load_label_tokenizer
from weft.text.labels import LabelVocabulary
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview
from weft.text.tokenizers import train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, TextsWithProgress

AS_USUAL = Reading()
OWN = 0.9  # labels an occurrence of one: from here on nearly every example has its own


@dataclass
class LabeledSummary:
    """Statistics of labeled files."""

    files: FileSummary  # line ends, encoding, notes, blank lines; it counts no lines
    inputs: tuple[Path, ...]
    reading: Reading
    sizes: tuple[ColumnSize, ...]
    directories: list[str]  # notes on directories
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
        return self.files.has_crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.labels.update(record.labels)
        self.numbers.append(self.sets.setdefault(record.labels, len(self.sets)))
        for size, text in zip(self.sizes, record.texts, strict=True):
            size.add(text)
        if len(self.examples) < 3:
            self.examples.append((tuple(text[: PREVIEW_CHARS + 1] for text in record.texts), record.labels))

    def bytes_of(self, column: str) -> int:
        return self.sizes[int(column)].bytes

    def strata(self) -> np.ndarray:
        """int64 (N,): each example's label, as a number; of several the rarest, which is hardest to share out."""
        places = {name: number for number, name in enumerate(self.labels, 1)}
        rarest = [min(labels, key=lambda name: (self.labels[name], name), default="") for labels in self.sets]
        strata = np.array([places.get(name, 0) for name in rarest], dtype=np.int64)
        return np.asarray(strata[np.asarray(self.numbers)])

    def problem(self) -> str | None:
        """What is wrong where nearly every example has a label of its own, as it has if the column is one of numbers: none can
        be learned."""
        if self.count < MAX_LISTED or OWN * self.labels.total() > len(self.labels):
            return None
        examples = ", ".join(preview(name, 20) for name in sorted(self.labels)[:3])
        return (
            f"{display_name(self.inputs)}: {len(self.labels):,} labels for {self.count:,} examples, {examples} and so on:"
            f" nearly every example has a label of its own, and none can be learned; {self.label_place()}"
        )

    def label_place(self) -> str:
        """Where labels were read, for who finds that they are none."""
        if names := self.files.columns:
            return f"is data.label_column = {self.reading.label!r} the right column? columns: {', '.join(preview_cells(names))}"
        if any(kind_of(path) != "text" for path in self.files.paths):
            return "is data.label_column the right column?"
        return "a line is read as a label, white space, and a text"

    def skipped_notes(self) -> tuple[str, ...]:
        """What was left out, where something was."""
        count, first = self.files.skipped, self.files.first_skipped
        return (f"examples without a text that were skipped: {count:,}, the first at {first}",) if count else ()

    def notes(self) -> list[str]:
        """What is worth knowing."""
        file_notes = [*self.files.notes, *self.directories]
        notes = file_notes[:MAX_LISTED]
        if len(file_notes) > MAX_LISTED:
            notes.append(f"and {len(file_notes) - MAX_LISTED:,} such notes more")
        if self.files.blank:
            notes.append(f"blank lines that were skipped: {self.files.blank:,}")
        notes += self.skipped_notes()
        notes += [f"empty texts in column {number}: {size.empty:,}" for number, size in enumerate(self.sizes, 1) if size.empty]
        if none := list(self.numbers).count(self.sets.get((), -1)):
            notes.append(f"examples without a label: {none:,}")
        if len(self.sets) == 1:
            notes.append("all examples have the same label; there is nothing to tell apart")
        elif self.count >= MAX_LISTED and 2 * len(self.labels) > self.count:
            notes.append(f"{len(self.labels):,} labels for {self.count:,} examples; are they labels?")
        elif once := Counter({name: count for name, count in self.labels.items() if count == 1}):
            notes.append(f"labels that occur once, {len(once):,} of {len(self.labels):,}: {listed(once)}")
        return notes

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, labels, examples."""
        rows = [
            f"{listed_files(self.inputs)}: {pluralize(self.count, 'example')} of {pluralize(self.characters, 'character')} with"
            f" {pluralize(len(self.labels), 'label')}, {self.files.written}"
        ]
        rows += [f"  note: {preview(note, 200)}" for note in self.notes()]
        rows.append(f"  labels: {listed(self.labels)}")
        for texts, labels in self.examples:
            rows.append(f"  e.g.: {' | '.join(map(preview, texts))} -> {preview(', '.join(labels) or 'no label')}")
        return "\n".join(rows)


@dataclass(frozen=True)
class LabeledFormat:
    """Texts with labels: a corpus for each column of texts, called 0 and 1."""

    reading: Reading = AS_USUAL
    skip_empty: bool = True  # no part of the origin of a corpus: files that are read either way give the same one
    rows: str = "examples"
    in_memory: bool = False

    @property
    def encoding(self) -> str:
        return self.reading.encoding

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(str(index) for index in range(len(self.reading.text)))

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(file.path for file in find_files(inputs))

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], seen: FileSummary) -> Iterator[Record]:
        return read_records(find_files(inputs), self.reading, seen, skip_empty=self.skip_empty)

    def summary(self, inputs: tuple[Path, ...], seen: FileSummary) -> LabeledSummary:
        return LabeledSummary(
            seen, inputs, self.reading, tuple(ColumnSize() for _ in self.reading.text), _directory_notes(inputs)
        )

    def texts(self, record: Record) -> tuple[str, ...]:
        return record.texts

    def column_label(self, column: str) -> str:
        return str(self.reading.text[int(column)]) if len(self.reading.text) > 1 else ""

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        # labels decide which examples a share has, and names of files may be labels
        options, files = {**self.reading.provenance(), "text": list(self.reading.text)}, find_files(inputs)
        labels = [{} if file.label is None else {"label": file.label} for file in files]
        prints = fingerprints([file.path for file in files])
        return {"column": int(column), **options, "files": [one | label for one, label in zip(prints, labels, strict=True)]}


def _directory_notes(given: tuple[Path, ...]) -> list[str]:
    """Notes on directories of labels."""
    notes = []
    for path in given:
        if path.is_dir():
            kinds = ("a directory", "file") if any(file.is_whole for file in find_files([path])) else ("a file", "line")
            notes.append(f"{path.name}: {kinds[0]} for every label, every {kinds[1]} in it is an example")
    return notes


def labels_of(dataset: Dataset[Record]) -> list[tuple[str, ...]]:
    """The labels of every example."""
    return [record.labels for record in dataset.records()]


def count_long(corpora: Sequence[Corpus], dataset: Dataset[Record], *, max_length: int, truncate: bool) -> int:
    """How many examples, with a corpus for each column, have more than `longest` tokens and will be cut; <s> and every </s>
    count. Without `truncate` they are refused, with the place of the first."""
    lengths = 1 + np.sum([np.diff(corpus.line_starts()) for corpus in corpora], axis=0)
    long = np.flatnonzero(lengths > max_length)
    if len(long) and not truncate:
        place, more = dataset.location(int(long[0])), f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{place}{more}",
            f"has {lengths[long[0]]:,} tokens, more than data.max_length ({max_length})",
            "increase it or set data.truncate = true",
        )
    return len(long)


class LabeledDataConfig(TableFilesConfig):
    """Labeled texts, or pairs of texts."""

    text_column: Name | list[Name] = "text"
    """Column of the text: a name, a JSON key or a 1-based index. Two columns for text pairs."""
    label_column: Name = "label"
    """Column of the label."""
    multilabel: bool = False
    """Allow any number of labels per text."""
    label_separator: str | None = None
    """Separator between the labels in one field."""
    strip_label_after: str | None = None
    """Keep only the part of a label before this string."""
    # of a pair, both texts together
    max_length: int = Field(1000, ge=4, le=2**31 - 1)
    """Maximum length in tokens, including special tokens."""
    truncate: bool = True
    """Truncate longer texts. If false, they are an error."""
    skip_empty: bool = True
    """Skip examples without a text. If false, they are an error."""

    @model_validator(mode="after")
    def check_columns(self) -> Self:
        texts = self.columns()
        if not 1 <= len(texts) <= 2:
            raise invalid("text_column", f"expected one column, or two for text pairs, got {len(texts)}")
        columns = [("label_column", self.label_column), *(("text_column", column) for column in texts)]
        for option, column in columns:
            if column == "" or (isinstance(column, int) and column < 1):
                raise invalid(option, f"expected a name or a 1-based index, got {column!r}")
        if len({type(column) for _, column in columns}) > 1:
            raise invalid("", "text_column and label_column mix names and indices", "use one or the other")
        if len({column for _, column in columns}) < len(columns):
            raise invalid("", "text_column and label_column name one column twice")
        return self

    @model_validator(mode="after")
    def check_labels(self) -> Self:
        for option in ("label_separator", "strip_label_after"):
            if getattr(self, option) == "":
                raise invalid(option, "must not be empty", "remove it")
        if self.label_separator is not None and not self.multilabel:
            raise invalid("label_separator", "not used with multilabel = false", "remove it or set multilabel = true")
        return self

    def columns(self) -> tuple[Name, ...]:
        """The text columns: one, or two for pairs."""
        return tuple(self.text_column) if isinstance(self.text_column, list) else (self.text_column,)

    def reading(self) -> Reading:
        joint = self.label_separator or ","
        return Reading(
            self.encoding,
            self.columns(),
            self.label_column,
            self.multilabel,
            joint,
            self.strip_label_after,
            self.delimiter,
            self.sheet,
        )

    def used(self) -> ColumnUse:
        """What a trained run reads of a table: its texts."""
        columns = tuple(WantedColumn("text", column) for column in self.columns())
        usual = (WantedColumn("label", self.label_column), *columns) == DEFAULT_NAMES
        return ColumnUse(columns, DEFAULT_NAMES if usual else (), self.label_separator or ",", self.reading().tables())

    def with_defaults(self) -> Self:
        if not self.multilabel or self.label_separator is not None:
            return self
        return self.model_copy(update={"label_separator": ","})

    def sources(self, base: Path) -> dict[str, Dataset[Record]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        return datasets(base, LabeledFormat(self.reading(), self.skip_empty), self.train, self.valid, self.test)


# ---- tokens


class LabelledVocabulary:
    """A tokenizer for all columns, and the labels of training."""

    def build(
        self, config: RunConfig, dataset: Dataset[Record], with_progress: TextsWithProgress, note: Note
    ) -> LabelTokenizer:
        if problem := dataset.summary.problem():
            raise DataError("", problem)
        tokenizer = train_tokenizer(config.tokenizer, with_progress(all_texts(dataset)))
        return LabelTokenizer(tokenizer, LabelVocabulary.count(chain.from_iterable(labels_of(dataset))))

    def save(self, vocabulary: LabelTokenizer, directory: Path) -> None:
        vocabulary.save(directory)

    def load(self, directory: Path) -> LabelTokenizer:
        return load_label_tokenizer(directory)


def columns(config: RunConfig, vocabulary: LabelTokenizer) -> list[Column]:
    """One of each text of an example; none for baselines, which have terms of their own, and read a text to its end."""
    if isinstance(config.model, BaselineConfig):
        return []
    return [Column(str(index), vocabulary.tokenizer) for index in range(len(config.data.columns()))]


def fit(config: RunConfig, dataset: Dataset[Record], corpora: Sequence[Corpus]) -> SplitCorpora:
    max_length = config.data.max_length
    truncated = count_long(corpora, dataset, max_length=max_length, truncate=config.data.truncate)
    verb = "is" if truncated == 1 else "are"
    note = f"{pluralize(truncated, 'text')} {verb} longer than data.max_length = {max_length} tokens, and {verb} cut"
    return SplitCorpora(corpora, note if truncated else None)


def check(config: RunConfig) -> CheckPlan:
    data, train = config.data, training(config.datasets)
    names = tuple(map(str, data.columns()))
    sides = names if len(names) > 1 else ("text",)
    checked = CheckOptions(sides, data.max_length, data.truncate, labels="label", labels_of=lambda record: record.labels)
    unread = isinstance(config.model, BaselineConfig)  # terms, and texts of any length
    return CheckPlan(checked, lambda: [] if unread else [train_tokenizer(config.tokenizer, all_texts(train))] * len(names))


def lines(dataset: Dataset[Record]) -> Iterator[tuple[str, None]]:
    return (("\t".join(record.texts), None) for record in dataset.records())


def in_memory(config: LabeledDataConfig) -> MemoryFormat:
    """A text, or two, and the label; where an example may have several, a list of them."""
    return MemoryFormat((*config.columns(), config.label_column), inputs=len(config.columns()))
