"""The data of question answering: [data] of the run file, data sets of questions, and their summaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import invalid
from weft.data.columns import ColumnSpec
from weft.data.config import TableFilesConfig, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.input_records import ColumnSelection
from weft.data.memory import MemoryFormat
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.qa.batching import truncated_lengths
from weft.tasks.qa.files import QAFileOptions, Record, read_records
from weft.tasks.vocabulary import all_texts
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview, subject
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

DEFAULT_OPTIONS = QAFileOptions()
COLUMNS = ("questions", "passages")
MAX_EXAMPLES = 3  # in a summary


@dataclass
class QuestionSummary:
    """A summary of files of questions."""

    files: FileSummary  # line ends, encoding, notes; its line counts are not used
    sizes: tuple[ColumnSize, ColumnSize] = field(default_factory=lambda: (ColumnSize(), ColumnSize()))
    count: int = 0
    num_answered: int = 0
    num_ambiguous: int = 0  # answers without a start that occur more than once in the passage
    examples: list[tuple[str, str, str | None]] = field(default_factory=list)  # question, passage, answer

    @property
    def characters(self) -> int:
        """Number of characters of questions and passages."""
        return sum(size.characters for size in self.sizes)

    @property
    def num_crlf(self) -> int:
        return self.files.num_crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.num_answered += bool(record.answers)
        self.num_ambiguous += record.is_ambiguous
        for size, text in zip(self.sizes, (record.question, record.passage), strict=True):
            size.add(text)
        if len(self.examples) < MAX_EXAMPLES:
            answer = record.answers[0].text[: PREVIEW_CHARS + 1] if record.answers else None
            self.examples.append((record.question[: PREVIEW_CHARS + 1], record.passage[: PREVIEW_CHARS + 1], answer))

    def bytes_of(self, column: str) -> int:
        return self.sizes[COLUMNS.index(column)].bytes

    def strata(self) -> None:
        """None: consecutive questions share a passage, so splits are taken from the end of the data."""

    def problem(self) -> None:
        """None: there is no problem that concerns all questions."""

    def notes(self) -> list[str]:
        """Remarks on the files."""
        notes = list(self.files.notes)
        if self.files.blank:
            notes.append(f"blank lines that were skipped: {self.files.blank:,}")
        if self.num_ambiguous:
            problem = f"answers without a start that occur in their passage more than once: {self.num_ambiguous:,}"
            notes.append(f"{problem}; the first match is used")
        return notes

    def describe(self) -> str:
        """Several lines of text: files, sizes, encoding, line ends, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'question')}, {self.count - self.num_answered:,} of them"
            f" without an answer, passages with {pluralize(self.sizes[1].characters, 'character')},"
            f" {self.files.encoding_info}"
        ]
        rows += [f"  note: {preview(note, 200)}" for note in self.notes()]
        for question, passage, answer in self.examples:
            rows.append(
                f"  e.g.: {preview(question)} | {preview(passage)} -> {'no answer' if answer is None else preview(answer)}"
            )
        return "\n".join(rows)


@dataclass(frozen=True)
class QuestionFormat:
    """The format of data sets of questions about passages."""

    options: QAFileOptions = DEFAULT_OPTIONS
    columns: tuple[str, ...] = COLUMNS
    rows: str = "questions"
    in_memory: bool = False

    @property
    def encoding(self) -> str:
        return self.options.encoding

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return inputs

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], file_summary: FileSummary) -> Iterator[Record]:
        return read_records(inputs, self.options, file_summary)

    def summary(self, inputs: tuple[Path, ...], file_summary: FileSummary) -> QuestionSummary:
        return QuestionSummary(file_summary)

    def texts(self, record: Record) -> tuple[str, ...]:
        return record.question, record.passage

    def column_label(self, column: str) -> str:
        return column

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {**self.options.provenance(), "side": COLUMNS.index(column), "files": fingerprints(inputs)}


class QADataConfig(TableFilesConfig):
    """Questions about passages, in a table or in SQuAD's JSON, whose names are fixed."""

    question_column: str = "question"
    """Column of the question."""
    passage_column: str = "passage"
    """Column of the passage."""
    answer_column: str = "answer"
    """Column of the answer; empty if the passage has none."""
    answer_start_column: str = "answer_start"
    """Column of the answer's character offset. Optional: the first match is used without it."""
    # a question, a window of the passage, and three special tokens
    max_length: int = Field(384, ge=8, le=2**31 - 1)
    """Maximum length in tokens, including special tokens."""
    doc_stride: int = Field(128, ge=1)
    """Tokens from the start of one passage window to the next."""
    max_answer_length: int = Field(30, ge=1)
    """Longest answer to predict, in tokens."""

    @model_validator(mode="after")
    def check_columns(self) -> Self:
        options = ("question_column", "passage_column", "answer_column", "answer_start_column")
        for option in options:
            if not getattr(self, option):
                raise invalid(option, "expected a column name, got ''")
        columns = [getattr(self, option) for option in options]
        if repeated := [option for option in options if columns.count(getattr(self, option)) > 1]:
            raise invalid(repeated[1], f"names the same column as {repeated[0]}")
        if self.doc_stride >= self.max_length:
            problem = f"must be less than max_length ({self.max_length}), got {self.doc_stride}"
            raise invalid("doc_stride", problem)
        return self

    def file_options(self) -> QAFileOptions:
        return QAFileOptions(
            self.encoding,
            self.question_column,
            self.passage_column,
            self.answer_column,
            self.answer_start_column,
            self.delimiter,
            self.sheet,
        )

    def input_columns(self) -> ColumnSelection:
        """The columns of a table that a trained run reads: question and passage."""
        columns = (ColumnSpec("question", self.question_column), ColumnSpec("passage", self.passage_column))
        has_default_names = (self.question_column, self.passage_column) == (DEFAULT_OPTIONS.question, DEFAULT_OPTIONS.passage)
        return ColumnSelection(columns, columns if has_default_names else (), options=self.file_options().table_options())

    def sources(self, base: Path) -> dict[str, Dataset[Record]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        return datasets(base, QuestionFormat(self.file_options()), self)


# ---- tokens


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    return [Column(name, vocabulary) for name in COLUMNS]


def limit_lengths(config: RunConfig, dataset: Dataset[Record], corpora: Sequence[Corpus]) -> SplitColumns:
    """Accept all texts; long questions are truncated when windows are made, which a note mentions."""
    max_length, lengths = config.data.max_length, np.diff(corpora[0].line_starts()) - 1
    num_truncated = int((truncated_lengths(lengths, max_length) < lengths).sum())
    verb = "is" if num_truncated == 1 else "are"
    questions = subject(num_truncated, "question", "has", "have")
    note = f"{questions} more than half of data.max_length ({max_length}) and {verb} truncated"
    return SplitColumns(corpora, note if num_truncated else None)


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)
    return CheckPlan(
        CheckOptions(("question", "passage"), independent_sides=True),
        lambda: [train_tokenizer(config.tokenizer, all_texts(train))] * 2,
    )


def lines(dataset: Dataset[Record]) -> Iterator[tuple[str, None]]:
    return ((f"{record.question}\t{record.passage}", None) for record in dataset.records())


def in_memory(config: QADataConfig) -> MemoryFormat:
    """A question, its passage, the answer (a text, a list of texts, or None), and optionally the start of the answer."""
    return MemoryFormat(
        (config.question_column, config.passage_column, config.answer_column, config.answer_start_column),
        num_inputs=2,
        optional=(config.answer_start_column,),
    )
