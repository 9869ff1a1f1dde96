"""The [data] section of seq2seq, and the pairs of its splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from weft.config import invalid
from weft.data.columns import ColumnSpec
from weft.data.config import ImportableTableFilesConfig, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.input_files import open_columns
from weft.data.input_records import ColumnSelection, InputFile, OpenedRecords
from weft.data.memory import MemoryFormat
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.data.table_rows import DEFAULT_TABLE_OPTIONS, NOT_A_TABLE, TableOptions, file_format, is_table
from weft.errors import UsageError
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.encoder_decoder.lengths import limit_side
from weft.tasks.seq2seq.files import DEFAULT_COLUMNS, Columns, Record, read_records
from weft.text.reading import PREVIEW_CHARS, FileSummary, as_paths, listed_files, pluralize, preview
from weft.text.tokenizer_pair import TokenizerPair, load_tokenizer_pair, save_tokenizer_pair, train_tokenizer_pair

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, TextsWithProgress

SIDES = ("source", "target")
MAX_EXAMPLES = 3  # in a summary


@dataclass
class PairSummary:
    """A summary of files of pairs."""

    files: FileSummary  # line endings, encoding, notes; its line count is not used
    count: int = 0
    source: ColumnSize = field(default_factory=ColumnSize)
    target: ColumnSize = field(default_factory=ColumnSize)
    examples: list[tuple[str, str]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        """Characters of both sides."""
        return self.source.characters + self.target.characters

    @property
    def num_crlf(self) -> int:
        return self.files.num_crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.source.add(record.source)
        self.target.add(record.target)
        if len(self.examples) < MAX_EXAMPLES and record.source.strip() and record.target.strip():
            self.examples.append((record.source[: PREVIEW_CHARS + 1], record.target[: PREVIEW_CHARS + 1]))

    def bytes_of(self, column: str) -> int:
        return (self.source if column == "source" else self.target).bytes

    def strata(self) -> None:
        """None: fractions are taken from the end."""

    def problem(self) -> None:
        """None: the data is not checked as a whole."""

    def describe(self) -> str:
        """A description in several lines: files, sizes, encoding, line endings, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'pair')}, {self.source.characters:,} source and"
            f" {pluralize(self.target.characters, 'target character')}, {self.files.encoding_info}"
        ]
        sides = (("sources", self.source), ("targets", self.target))
        empty = [f"empty {name}: {side.empty:,}" for name, side in sides if side.empty]
        blank = [f"skipped blank lines: {self.files.blank:,}"] if self.files.blank else []
        rows += [f"  note: {preview(note, 200)}" for note in [*self.files.notes, *blank, *empty]]
        rows += [f"  e.g.: {preview(source)} -> {preview(target)}" for source, target in self.examples]
        return "\n".join(rows)


@dataclass(frozen=True)
class PairFormat:
    """Pairs in tables, or in two parallel files. Further references, which only `references` reads, are the columns
    `reference_columns` or the files after the first two."""

    encoding: str = "utf-8"
    pair_columns: Columns = DEFAULT_COLUMNS
    reference_columns: tuple[str, ...] = ()
    columns: tuple[str, ...] = SIDES
    rows: str = "pairs"
    in_memory: bool = False
    tables: TableOptions = DEFAULT_TABLE_OPTIONS  # its encoding is ignored

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return inputs

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return () if is_table(inputs[0], self.tables.delimiter) else inputs[:2]

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[Record]:
        options = replace(self.tables, encoding=self.encoding)
        return read_records(self.column_files(inputs) or inputs, self.pair_columns, options, summary)

    def summary(self, inputs: tuple[Path, ...], summary: FileSummary) -> PairSummary:
        return PairSummary(summary)

    def texts(self, record: Record) -> tuple[str, ...]:
        return record.source, record.target

    def column_label(self, column: str) -> str:
        return column

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        index, column_files = SIDES.index(column), self.column_files(inputs)
        source = {} if column_files else {"column": self.pair_columns[index], **self.tables.provenance()}
        files = fingerprints(column_files[index : index + 1] or inputs)
        return {"side": column, **source, "encoding": self.encoding, "files": files}


def pairs(dataset: Dataset[Record]) -> Iterator[tuple[str, str]]:
    """The sources and targets."""
    return ((record.source, record.target) for record in dataset.records())


def references(dataset: Dataset[Record]) -> Iterator[tuple[str, ...]]:
    """The references of each pair: its target and its further references. Empty references are skipped, unless all are
    empty."""
    inputs, form = dataset.inputs, dataset.format
    if form.column_files(inputs):
        others = [replace(dataset, inputs=(inputs[0], path)) for path in inputs[2:]]
    elif isinstance(form, PairFormat):
        others = [
            replace(dataset, format=replace(form, pair_columns=(form.pair_columns[0], column)))
            for column in form.reference_columns
        ]
    else:
        others = []
    for texts in zip(*(targets.texts("target") for targets in [dataset, *others]), strict=True):
        yield tuple(text for text in texts if text.strip()) or texts[:1]


def _check_file_types(split: str, paths: list[Path], delimiter: str | None) -> None:
    kinds = {file_format(path) for path in paths}
    if len(kinds) > 1:
        raise invalid(split, f"different file types: {', '.join(sorted(kinds))}", "use files of one type")
    if len(paths) < 2 and not is_table(paths[0], delimiter):
        fix = f'use a table or two parallel files, e.g. {split} = ["a.en", "a.de"]'
        raise invalid(split, f"{paths[0].name!r} is {NOT_A_TABLE}", fix)


class PairDataConfig(ImportableTableFilesConfig):
    """Pairs of source and target, in a table or in two parallel files."""

    # a table without a header line has the source in the first column and the target in the second
    source_column: str = "source"
    """Column or JSON key of the source text."""
    # of several columns, training reads the first; metrics use all as references
    target_column: str | list[str] = "target"
    """Column or JSON key of the target text."""
    max_length: int = Field(1000, ge=2, le=2**31 - 1)
    """Maximum length in tokens, including special tokens."""
    truncate: bool = False
    """Truncate longer texts. If false, they are an error."""

    @model_validator(mode="after")
    def check_options(self) -> Self:
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        paths_by_split = {split: as_paths(files) for split, files in splits.items() if isinstance(files, str | list)}
        for split, paths in paths_by_split.items():
            _check_file_types(split, paths, self.delimiter)
        has_tables = any(is_table(paths[0], self.delimiter) for paths in paths_by_split.values())
        for side, column in (("source", self.source_column), ("target", self.target_column)):
            if not column or (isinstance(column, list) and "" in column):
                raise invalid(f"{side}_column", f"expected a column name, got {[] if column == [] else ''!r}")
            if column != side and not has_tables:
                raise invalid(f"{side}_column", "parallel files have no columns", "remove it")
        if self.table_options().provenance() and not has_tables:
            raise invalid(next(iter(self.table_options().provenance())), "parallel files have no columns", "remove it")
        if repeated := [column for column in self.targets() if self.targets().count(column) > 1]:
            raise invalid("target_column", f"{repeated[0]!r} is repeated", "name each reference once")
        return self

    def targets(self) -> list[str]:
        """The target columns: the first is trained on, all are references."""
        return [self.target_column] if isinstance(self.target_column, str) else self.target_column

    def table_options(self) -> TableOptions:
        return TableOptions(self.encoding, self.delimiter, self.sheet)

    def input_columns(self, *, targets: bool = False) -> ColumnSelection:
        """The columns of a table that a trained run reads: its sources and, with `targets`, its (first) targets."""
        columns = (ColumnSpec("source", self.source_column), ColumnSpec("target", self.targets()[0]))
        are_default = (self.source_column, self.target_column) == DEFAULT_COLUMNS
        return ColumnSelection(
            columns if targets else columns[:1], columns if are_default else (), options=self.table_options()
        )

    def with_defaults(self) -> Self:
        """The configuration itself: all options have defaults."""
        return self

    def sources(self, base: Path) -> dict[str, Dataset[Record]]:
        """The data sets of train, valid and test, as far as they are set. Paths are relative to `base`, the directory of the
        run file."""
        target, *references = self.targets()
        form = PairFormat(self.encoding, (self.source_column, target), tuple(references), tables=self.table_options())
        return datasets(base, form, self)


# ---- tokens


class PairVocabulary:
    """One tokenizer for sources and targets, or one each."""

    def build(self, config: RunConfig, dataset: Dataset[Record], with_progress: TextsWithProgress, note: Note) -> TokenizerPair:
        source, target = (partial(_texts_with_progress, dataset, side, with_progress) for side in SIDES)
        return train_tokenizer_pair(config.tokenizer, source, target)

    def save(self, vocabulary: TokenizerPair, directory: Path) -> None:
        save_tokenizer_pair(vocabulary, directory)

    def load(self, directory: Path) -> TokenizerPair:
        return load_tokenizer_pair(directory)


def _texts_with_progress(dataset: Dataset[Record], side: str, with_progress: TextsWithProgress) -> Iterator[str]:
    return with_progress(dataset.texts(side))


def columns(config: RunConfig, vocabulary: TokenizerPair) -> list[Column]:
    return [Column(side, tokenizer) for side, tokenizer in zip(SIDES, vocabulary, strict=True)]


def limit_lengths(config: RunConfig, dataset: Dataset[Record], corpora: Sequence[Corpus]) -> SplitColumns:
    data = config.data
    return SplitColumns(
        [
            limit_side(corpus, dataset, side, max_length=data.max_length, truncate=data.truncate)
            for side, corpus in zip(SIDES, corpora, strict=True)
        ]
    )


def check(config: RunConfig) -> CheckPlan:
    data, train = config.data, training(config.datasets)
    source, target = (partial(train.texts, side) for side in SIDES)
    options = CheckOptions(SIDES, data.max_length, data.truncate, has_start_tokens=True)
    return CheckPlan(options, lambda: train_tokenizer_pair(config.tokenizer, source, target))


def open_pairs(config: PairDataConfig, file: InputFile) -> OpenedRecords | None:
    """The sources of a table, and its targets if `file.targets`; None for a text file, whose records are its lines."""
    return open_columns(file, config.input_columns(targets=file.targets), config.train)


def check_pairs_complete(config: PairDataConfig, paths: Sequence[Path]) -> None:
    """Refuse only one of two parallel files."""
    if len(paths) == 1 and not is_table(paths[0], config.delimiter):
        raise UsageError("data", f"{paths[0]} is {NOT_A_TABLE}", "use a table, or one file of sources and one of targets")


def in_memory(config: PairDataConfig) -> MemoryFormat:
    """A source and one or more targets."""
    return MemoryFormat((config.source_column, *config.targets()))
