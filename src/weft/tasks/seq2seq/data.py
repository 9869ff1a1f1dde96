"""Which pairs a split is, and the [data] table of tasks that turn one text into another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import Config
from weft.data.columns import WantedColumn
from weft.data.config import Delimiter, Files, Sheet, Split, check_splits, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.input_files import open_columns
from weft.data.input_records import ColumnUse, InputFile, OpenedRecords
from weft.data.memory import MemoryFormat
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.data.table_rows import DEFAULT_TABLE_OPTIONS, NOT_A_TABLE, TableOptions, kind_of
from weft.errors import DataError, UsageError
from weft.tasks.data_spec import Column, Fitted
from weft.tasks.seq2seq.files import DEFAULT, Columns, Record, read_records
from weft.text.reading import PREVIEW_CHARS, FileSummary, as_paths, listed_files, pluralize, preview
from weft.text.tokenizer_pair import TokenizerPair, load_tokenizer_pair, save_tokenizer_pair, train_tokenizer_pair

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, Watched

SIDES = ("source", "target")


@dataclass
class PairSummary:
    """What was found in files of pairs."""

    files: FileSummary  # line ends, encoding, notes; it counts no lines
    count: int = 0
    source: ColumnSize = field(default_factory=ColumnSize)
    target: ColumnSize = field(default_factory=ColumnSize)
    examples: list[tuple[str, str]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        """Of both sides."""
        return self.source.characters + self.target.characters

    @property
    def crlf(self) -> int:
        return self.files.has_crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.source.add(record.source)
        self.target.add(record.target)
        if len(self.examples) < 3 and record.source.strip() and record.target.strip():
            self.examples.append((record.source[: PREVIEW_CHARS + 1], record.target[: PREVIEW_CHARS + 1]))

    def bytes_of(self, column: str) -> int:
        return (self.source if column == "source" else self.target).bytes

    def strata(self) -> None:
        """Shares are taken off the end."""

    def problem(self) -> None:
        """Nothing is known that would be wrong with all of them."""

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'pair')} of {self.source.characters:,} and"
            f" {pluralize(self.target.characters, 'character')}, {self.files.written}"
        ]
        sides = (("sources", self.source), ("targets", self.target))
        empty = [f"empty {name}: {side.empty:,}" for name, side in sides if side.empty]
        blank = [f"blank lines that were skipped: {self.files.blank:,}"] if self.files.blank else []
        rows += [f"  note: {preview(note, 200)}" for note in [*self.files.notes, *blank, *empty]]
        rows += [f"  e.g.: {preview(source)} -> {preview(target)}" for source, target in self.examples]
        return "\n".join(rows)


@dataclass(frozen=True)
class PairFormat:
    """Pairs of tables, or of two parallel files; `others` are columns, and files after the first two are files, of further
    references, which only `references` reads."""

    encoding: str = "utf-8"
    named: Columns = DEFAULT
    others: tuple[str, ...] = ()
    columns: tuple[str, ...] = SIDES
    rows: str = "pairs"
    in_memory: bool = False
    tables: TableOptions = DEFAULT_TABLE_OPTIONS  # of tables, whose encoding is the same

    def files(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return given

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return given[:2] if kind_of(given[0]) == "text" else ()

    def read(self, given: tuple[Path, ...], seen: FileSummary) -> Iterator[Record]:
        return read_records(self.column_files(inputs) or given, self.named, replace(self.tables, encoding=self.encoding), seen)

    def summary(self, given: tuple[Path, ...], seen: FileSummary) -> PairSummary:
        return PairSummary(seen)

    def texts(self, record: Record) -> tuple[str, ...]:
        return record.source, record.target

    def column_label(self, column: str) -> str:
        return column

    def provenance(self, given: tuple[Path, ...], column: str) -> dict[str, Any]:
        at, apart = SIDES.index(column), self.column_files(inputs)
        place = {} if apart else {"column": self.named[at], **self.tables.provenance()}
        return {"side": column, **place, "encoding": self.encoding, "files": fingerprints(apart[at : at + 1] or given)}


def pairs(dataset: Dataset[Record]) -> Iterator[tuple[str, str]]:
    """The sources and targets."""
    return ((record.source, record.target) for record in dataset.records())


def references(dataset: Dataset[Record]) -> Iterator[tuple[str, ...]]:
    """What outputs are scored against: the target of each pair and its further references. Of several, an empty one is none,
    unless all are empty."""
    given, form = dataset.given, dataset.format
    if form.column_files(inputs):
        further = [replace(dataset, given=(given[0], path)) for path in given[2:]]
    elif isinstance(form, PairFormat):
        further = [replace(dataset, format=replace(form, named=(form.named[0], column))) for column in form.others]
    else:
        further = []
    for some in zip(*(part.texts("target") for part in [dataset, *further]), strict=True):
        yield tuple(text for text in some if text.strip()) or some[:1]


def fit_side(corpus: Corpus, dataset: Dataset[Record], side: str, *, max_length: int, truncate: bool) -> Corpus:
    """The corpus of a side, "source" or "target", of which no line has more than `longest` tokens: what is longer is refused
    with its place, or cut before its </s>. What was cut is in memory, all else stays on disk."""
    starts = corpus.line_starts()
    lengths = np.diff(starts)
    long = np.flatnonzero(lengths > max_length)
    if not len(long):
        return corpus
    if not truncate:
        place, more = dataset.place(int(long[0]), side), f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{place}{more}",
            f"its {side} has {lengths[long[0]]:,} tokens, more than data.max_length = {max_length}",
            "raise that, or set data.truncate = true to have it cut",
        )
    kept = np.ones(len(corpus.tokens), dtype=bool)
    for line in long.tolist():
        kept[starts[line] + max_length - 1 : starts[line + 1] - 1] = False
    ends = np.concatenate([[0], np.cumsum(np.minimum(lengths, max_length))])
    # a line counts its whole text still: losses per character are those of what was to be read
    marks = np.concatenate([ends[:, None], corpus.marks[:, 1:]], axis=1)
    return replace(corpus, tokens=corpus.tokens[kept], starts=ends, marks=marks)


def _check_kinds(name: str, paths: list[Path]) -> None:
    kinds = {kind_of(path) for path in paths}
    if len(kinds) > 1:
        raise ValueError(f"{name} mixes {', '.join(sorted(kinds))} files; give files of one kind")
    if kinds == {"text"} and len(paths) < 2:
        raise ValueError(
            f'{name}={paths[0].name!r} is {NOT_A_TABLE}: name a table so, or give two parallel files, {name} = ["a.en", "a.de"]'
        )


class PairDataConfig(Config):
    """Which pairs, and how they are read."""

    train: Files
    valid: Split = None  # files, or the share of train that is taken off its end
    test: Split = None  # likewise; the order is train, valid, test
    encoding: str = "utf-8"
    delimiter: Delimiter = None  # between the columns of .csv and .tsv, if not what their first line shows; or "tab"
    sheet: Sheet = None  # of .xlsx: a name, or a place from 1; the first, unless given
    # columns of tables: keys of JSONL, or names in the first line; without such a line the first two columns
    source_column: str = "source"
    target_column: str | list[str] = "target"  # of several, training reads the first, and scores know all as references
    max_length: int = Field(1000, ge=2, le=2**31 - 1)  # tokens of a side, </s> among them
    truncate: bool = False  # cut what is longer, instead of refusing it

    @model_validator(mode="after")
    def check_options(self) -> Self:
        check_splits(self.train, self.valid, self.test, self.encoding)
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        paths = {name: as_paths(files) for name, files in named.items() if isinstance(files, str | list)}
        for name, found in paths.items():
            _check_kinds(name, found)
        tables = any(kind_of(found[0]) != "text" for found in paths.values())
        for name, column in (("source", self.source_column), ("target", self.target_column)):
            if not column or (isinstance(column, list) and "" in column):
                raise ValueError(f"{name}={[] if column == [] else ''!r} names no column")
            if column != name and not tables:
                raise ValueError(f"{name}={column!r}, but parallel files have no columns; drop it")
        if self.tables().provenance() and not tables:
            (option, value), *_ = self.tables().provenance().items()
            raise ValueError(f"{option}={value!r}, but parallel files have no columns; drop it")
        if twice := [column for column in self.targets() if self.targets().count(column) > 1]:
            raise ValueError(f"target names the column {twice[0]!r} twice; name each reference once")
        return self

    def targets(self) -> list[str]:
        """The columns of targets: the first to learn from, all as references."""
        return [self.target_column] if isinstance(self.target_column, str) else self.target_column

    def tables(self) -> TableOptions:
        return TableOptions(self.encoding, self.delimiter, self.sheet)

    def used(self, *, targets: bool = False) -> ColumnUse:
        """What a trained run reads of a table: its sources, and its (first) targets if they are wanted."""
        columns = (WantedColumn("source", self.source_column), WantedColumn("target", self.targets()[0]))
        usual = (self.source_column, self.target_column) == DEFAULT
        return ColumnUse(columns if targets else columns[:1], columns if usual else (), options=self.tables())

    def with_defaults(self) -> Self:
        """The same with every option that applies filled in: all of them do."""
        return self

    def sources(self, base: Path) -> dict[str, Dataset[Record]]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        first, *others = self.targets()
        form = PairFormat(self.encoding, (self.source_column, first), tuple(others), tables=self.tables())
        return datasets(base, form, self.train, self.valid, self.test)


# ---- tokens


class PairVocabulary:
    """A tokenizer for sources and targets, or one each."""

    def make(self, config: RunConfig, dataset: Dataset[Record], watched: Watched, note: Note) -> TokenizerPair:
        source, target = (partial(_watched_texts, dataset, side, watched) for side in SIDES)
        return train_tokenizer_pair(config.tokenizer, source, target)

    def save(self, vocabulary: TokenizerPair, directory: Path) -> None:
        save_tokenizer_pair(vocabulary, directory)

    def load(self, directory: Path) -> TokenizerPair:
        return load_tokenizer_pair(directory)


def _watched_texts(dataset: Dataset[Record], side: str, watched: Watched) -> Iterator[str]:
    return watched(dataset.texts(side))


def columns(config: RunConfig, vocabulary: TokenizerPair) -> list[Column]:
    return [Column(side, tokenizer) for side, tokenizer in zip(SIDES, vocabulary, strict=True)]


def fit(config: RunConfig, dataset: Dataset[Record], corpora: Sequence[Corpus]) -> Fitted:
    data = config.data
    return Fitted(
        [
            fit_side(corpus, dataset, side, max_length=data.max_length, truncate=data.truncate)
            for side, corpus in zip(SIDES, corpora, strict=True)
        ]
    )


def check(config: RunConfig) -> CheckPlan:
    data, train = config.data, training(config.datasets)
    source, target = (partial(train.texts, side) for side in SIDES)
    return CheckPlan(
        CheckOptions(SIDES, data.max_length, data.truncate), lambda: train_tokenizer_pair(config.tokenizer, source, target)
    )


def open_pairs(config: PairDataConfig, file: InputFile) -> OpenedRecords | None:
    """The sources of a table, and its targets if they are wanted; None for a text, whose records are its lines."""
    return open_columns(file, config.used(targets=file.targets), config.train)


def check_pairs_complete(paths: Sequence[Path]) -> None:
    """Refuse one file of the two that pairs may be in."""
    if len(paths) == 1 and kind_of(paths[0]) == "text":
        raise UsageError(
            f"--data {paths[0]}", f"is {NOT_A_TABLE}", "name a table so, or give two parallel files, --data SOURCES --data TARGETS"
        )


def in_memory(config: PairDataConfig) -> MemoryFormat:
    """A source, and its target, or several."""
    return MemoryFormat((config.source_column, *config.targets()))
