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
from weft.data.columns import DEFAULT_COLUMNS, ColumnSpec, Name
from weft.data.config import TableFilesConfig, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.input_records import ColumnSelection
from weft.data.memory import MemoryFormat
from weft.data.source import display_name, fingerprints
from weft.data.summary import MAX_LISTED, ColumnSize, listed
from weft.data.table_rows import is_table, preview_cells
from weft.errors import DataError
from weft.models.baseline_config import BaselineConfig
from weft.tasks.classification.files import Reading, Record, find_files, read_records
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.vocabulary import all_texts
from weft.text.label_tokenizer import LabelTokenizer, load_label_tokenizer
from weft.text.labels import LabelVocabulary
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, TextsWithProgress

DEFAULT_READING = Reading()
MAX_UNIQUE_RATIO = 0.9  # of distinct labels to label occurrences; with more, labels are probably IDs or texts


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
    label_sets: dict[tuple[str, ...], int] = field(default_factory=dict)  # index of each distinct label set
    label_set_ids: array[int] = field(default_factory=lambda: array("q"))  # label set of each example

    @property
    def characters(self) -> int:
        """Total number of characters of all texts."""
        return sum(size.characters for size in self.sizes)

    @property
    def num_crlf(self) -> int:
        return self.files.num_crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.labels.update(record.labels)
        self.label_set_ids.append(self.label_sets.setdefault(record.labels, len(self.label_sets)))
        for size, text in zip(self.sizes, record.texts, strict=True):
            size.add(text)
        if len(self.examples) < 3:
            self.examples.append((tuple(text[: PREVIEW_CHARS + 1] for text in record.texts), record.labels))

    def bytes_of(self, column: str) -> int:
        return self.sizes[int(column)].bytes

    def strata(self) -> np.ndarray:
        """int64 (N,): stratum of each example for stratified splits: its label, the rarest one if it has several."""
        label_ids = {name: index for index, name in enumerate(self.labels, 1)}
        rarest = [min(labels, key=lambda name: (self.labels[name], name), default="") for labels in self.label_sets]
        strata = np.array([label_ids.get(name, 0) for name in rarest], dtype=np.int64)
        return np.asarray(strata[np.asarray(self.label_set_ids)])

    def problem(self) -> str | None:
        """Message if nearly every example has a unique label, for example because the label column contains IDs."""
        if self.count < MAX_LISTED or MAX_UNIQUE_RATIO * self.labels.total() > len(self.labels):
            return None
        examples = ", ".join(preview(name, 20) for name in sorted(self.labels)[:3])
        return (
            f"{display_name(self.inputs)}: {len(self.labels):,} labels for {self.count:,} examples, {examples} and so on:"
            f" nearly every example has a label of its own, and none can be learned"
        )

    def label_hint(self) -> str:
        """Where the labels come from, for errors about labels that look wrong."""
        if names := self.files.columns:
            return f"check data.label_column = {self.reading.label!r}; columns: {', '.join(preview_cells(names))}"
        if any(is_table(path, self.reading.delimiter) for path in self.files.paths):
            return "check data.label_column"
        if any(path.is_dir() for path in self.inputs):
            return "put the files of each label into a subdirectory; without subdirectories, a file name is a label"
        return "a line is read as a label, white space, and a text"

    def skipped_notes(self) -> tuple[str, ...]:
        """Note on skipped examples, if any."""
        count, first = self.files.skipped, self.files.first_skipped
        return (f"examples without a text that were skipped: {count:,}, the first at {first}",) if count else ()

    def notes(self) -> list[str]:
        """Notes on the files and the labels."""
        file_notes = [*self.files.notes, *self.directories]
        notes = file_notes[:MAX_LISTED]
        if len(file_notes) > MAX_LISTED:
            notes.append(f"and {len(file_notes) - MAX_LISTED:,} more notes on files")
        if self.files.blank:
            notes.append(f"blank lines that were skipped: {self.files.blank:,}")
        notes += self.skipped_notes()
        notes += [f"empty texts in column {number}: {size.empty:,}" for number, size in enumerate(self.sizes, 1) if size.empty]
        if unlabeled := self.label_set_ids.count(self.label_sets.get((), -1)):
            notes.append(f"examples without a label: {unlabeled:,}")
        if len(self.label_sets) == 1:
            notes.append("all examples have the same label; there is nothing to learn")
        elif self.count >= MAX_LISTED and 2 * len(self.labels) > self.count:
            notes.append(f"{len(self.labels):,} labels for {self.count:,} examples; are they labels?")
        elif once := Counter({name: count for name, count in self.labels.items() if count == 1}):
            notes.append(f"labels that occur once, {len(once):,} of {len(self.labels):,}: {listed(once)}")
        return notes

    def describe(self) -> str:
        """Description in several lines: files, sizes, encoding, line ends, notes, labels, examples."""
        rows = [
            f"{listed_files(self.inputs)}: {pluralize(self.count, 'example')}, {pluralize(self.characters, 'character')},"
            f" {pluralize(len(self.labels), 'label')}, {self.files.encoding_info}"
        ]
        rows += [f"  note: {preview(note, 200)}" for note in self.notes()]
        rows.append(f"  labels: {listed(self.labels)}")
        for texts, labels in self.examples:
            rows.append(f"  e.g.: {' | '.join(map(preview, texts))} -> {preview(', '.join(labels) or 'no label')}")
        return "\n".join(rows)


@dataclass(frozen=True)
class LabeledFormat:
    """The format of labeled texts: one corpus per text column, named "0" and "1"."""

    reading: Reading = DEFAULT_READING
    skip_empty: bool = True  # not part of the provenance: files that can be read either way give the same corpus
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

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[Record]:
        return read_records(find_files(inputs), self.reading, summary, skip_empty=self.skip_empty)

    def summary(self, inputs: tuple[Path, ...], files: FileSummary) -> LabeledSummary:
        sizes = tuple(ColumnSize() for _ in self.reading.text)
        return LabeledSummary(files, inputs, self.reading, sizes, _directory_notes(inputs))

    def texts(self, record: Record) -> tuple[str, ...]:
        return record.texts

    def column_label(self, column: str) -> str:
        return str(self.reading.text[int(column)]) if len(self.reading.text) > 1 else ""

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        # labels determine stratified splits, and file names may be labels
        options, files = {**self.reading.provenance(), "text": list(self.reading.text)}, find_files(inputs)
        labels = [{} if file.label is None else {"label": file.label} for file in files]
        hashes = fingerprints([file.path for file in files])
        return {"column": int(column), **options, "files": [file | label for file, label in zip(hashes, labels, strict=True)]}


def _directory_notes(inputs: tuple[Path, ...]) -> list[str]:
    """Notes on how directories are read."""
    notes = []
    for path in inputs:
        if path.is_dir():
            is_nested = any(file.is_example for file in find_files([path]))
            container, unit = ("directory", "file") if is_nested else ("file", "line")
            notes.append(f"{path.name}: one {container} per label, one example per {unit}")
    return notes


def labels_of(dataset: Dataset[Record]) -> list[tuple[str, ...]]:
    """The labels of each example."""
    return [record.labels for record in dataset.records()]


def count_long(corpora: Sequence[Corpus], dataset: Dataset[Record], *, max_length: int, truncate: bool) -> int:
    """Number of examples with more than `max_length` tokens, including <s> and one </s> per text; they will be truncated.
    Without `truncate`, they are an error. `corpora` has one corpus per text column."""
    lengths = 1 + np.sum([np.diff(corpus.line_starts()) for corpus in corpora], axis=0)
    long = np.flatnonzero(lengths > max_length)
    if len(long) and not truncate:
        more = f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{dataset.location(int(long[0]))}{more}",
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
    # text pairs: of both texts together
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
        return Reading(
            encoding=self.encoding,
            text=self.columns(),
            label=self.label_column,
            multi=self.multilabel,
            separator=self.label_separator or ",",
            coarse=self.strip_label_after,
            delimiter=self.delimiter,
            sheet=self.sheet,
        )

    def used(self) -> ColumnSelection:
        """The columns of a table that a trained run reads: the texts."""
        columns = tuple(ColumnSpec("text", column) for column in self.columns())
        is_default = (ColumnSpec("label", self.label_column), *columns) == DEFAULT_COLUMNS
        return ColumnSelection(
            columns, DEFAULT_COLUMNS if is_default else (), self.label_separator or ",", self.reading().tables()
        )

    def with_defaults(self) -> Self:
        if not self.multilabel or self.label_separator is not None:
            return self
        return self.model_copy(update={"label_separator": ","})

    def sources(self, base: Path) -> dict[str, Dataset[Record]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        return datasets(base, LabeledFormat(self.reading(), self.skip_empty), self)


# ---- tokens


class LabeledVocabulary:
    """One tokenizer for all text columns, and the labels of the training data."""

    def build(
        self, config: RunConfig, dataset: Dataset[Record], with_progress: TextsWithProgress, note: Note
    ) -> LabelTokenizer:
        summary = dataset.summary
        if isinstance(summary, LabeledSummary) and (problem := summary.problem()):
            raise DataError("", problem, summary.label_hint())
        tokenizer = train_tokenizer(config.tokenizer, with_progress(all_texts(dataset)))
        return LabelTokenizer(tokenizer, LabelVocabulary.count(chain.from_iterable(labels_of(dataset))))

    def save(self, vocabulary: LabelTokenizer, directory: Path) -> None:
        vocabulary.save(directory)

    def load(self, directory: Path) -> LabelTokenizer:
        return load_label_tokenizer(directory)


def columns(config: RunConfig, vocabulary: LabelTokenizer) -> list[Column]:
    """One tokenized column per text column; none for baselines, which extract their own features."""
    if isinstance(config.model, BaselineConfig):
        return []
    return [Column(str(index), vocabulary.tokenizer) for index in range(len(config.data.columns()))]


def fit(config: RunConfig, dataset: Dataset[Record], corpora: Sequence[Corpus]) -> SplitColumns:
    max_length = config.data.max_length
    truncated = count_long(corpora, dataset, max_length=max_length, truncate=config.data.truncate)
    verb = "is" if truncated == 1 else "are"
    note = f"{pluralize(truncated, 'text')} {verb} longer than data.max_length = {max_length} tokens and {verb} truncated"
    return SplitColumns(corpora, note if truncated else None)


def check(config: RunConfig) -> CheckPlan:
    data, train = config.data, training(config.datasets)
    names = tuple(map(str, data.columns()))
    columns = names if len(names) > 1 else ("text",)
    options = CheckOptions(columns, data.max_length, data.truncate, labels="label", labels_of=lambda record: record.labels)
    has_tokenizer = not isinstance(config.model, BaselineConfig)

    def tokenizers() -> list[Tokenizer]:
        return [train_tokenizer(config.tokenizer, all_texts(train))] * len(names) if has_tokenizer else []

    return CheckPlan(options, tokenizers)


def lines(dataset: Dataset[Record]) -> Iterator[tuple[str, None]]:
    return (("\t".join(record.texts), None) for record in dataset.records())


def in_memory(config: LabeledDataConfig) -> MemoryFormat:
    """Examples are one or two texts and a label; a list of labels with multilabel = true."""
    return MemoryFormat((*config.columns(), config.label_column), num_inputs=len(config.columns()))
