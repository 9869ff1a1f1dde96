"""Which questions about passages a split is, and the [data] table of tasks that answer them by a part of the passage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import invalid
from weft.data.columns import WantedColumn
from weft.data.config import TableFilesConfig, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.input_records import ColumnUse
from weft.data.memory import MemoryFormat
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.tasks.data_spec import Column, SplitCorpora
from weft.tasks.qa.batching import question_tokens
from weft.tasks.qa.files import Reading, Record, read_records
from weft.tasks.vocabulary import all_texts
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview, subject
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

AS_USUAL = Reading()
COLUMNS = ("questions", "passages")


@dataclass
class QuestionSummary:
    """What was found in files of questions."""

    files: FileSummary  # line ends, encoding, notes; it counts no lines
    sizes: tuple[ColumnSize, ColumnSize] = field(default_factory=lambda: (ColumnSize(), ColumnSize()))
    count: int = 0
    answered: int = 0
    guessed: int = 0
    examples: list[tuple[str, str, str | None]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        """Of questions and passages."""
        return sum(size.characters for size in self.sizes)

    @property
    def crlf(self) -> int:
        return self.files.has_crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.answered += bool(record.answers)
        self.guessed += record.is_guessed
        for size, text in zip(self.sizes, (record.question, record.passage), strict=True):
            size.add(text)
        if len(self.examples) < 3:
            answer = record.answers[0].text[: PREVIEW_CHARS + 1] if record.answers else None
            self.examples.append((record.question[: PREVIEW_CHARS + 1], record.passage[: PREVIEW_CHARS + 1], answer))

    def bytes_of(self, column: str) -> int:
        return self.sizes[COLUMNS.index(column)].bytes

    def strata(self) -> None:
        """Questions beside each other share a passage: shares are taken off the end."""

    def problem(self) -> None:
        """Nothing is known that would be wrong with all of them."""

    def notes(self) -> list[str]:
        """What is worth knowing."""
        notes = list(self.files.notes)
        if self.files.blank:
            notes.append(f"blank lines that were skipped: {self.files.blank:,}")
        if self.guessed:
            notes.append(
                f"answers without a start that occur in their passage more than once: {self.guessed:,}; the first match is used"
            )
        return notes

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'question')}, {self.count - self.answered:,} of them"
            f" without an answer, and passages of {pluralize(self.sizes[1].characters, 'character')}, {self.files.written}"
        ]
        rows += [f"  note: {preview(note, 200)}" for note in self.notes()]
        for question, passage, answer in self.examples:
            rows.append(
                f"  e.g.: {preview(question)} | {preview(passage)} -> {'no answer' if answer is None else preview(answer)}"
            )
        return "\n".join(rows)


@dataclass(frozen=True)
class QuestionFormat:
    """Questions about passages."""

    reading: Reading = AS_USUAL
    columns: tuple[str, ...] = COLUMNS
    rows: str = "questions"
    in_memory: bool = False

    @property
    def encoding(self) -> str:
        return self.reading.encoding

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return inputs

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], seen: FileSummary) -> Iterator[Record]:
        return read_records(inputs, self.reading, seen)

    def summary(self, inputs: tuple[Path, ...], seen: FileSummary) -> QuestionSummary:
        return QuestionSummary(seen)

    def texts(self, record: Record) -> tuple[str, ...]:
        return record.question, record.passage

    def column_label(self, column: str) -> str:
        return column

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {**self.reading.provenance(), "side": COLUMNS.index(column), "files": fingerprints(inputs)}


class QADataConfig(TableFilesConfig):
    """Questions about passages, in a table or in SQuAD's JSON, which has its own names."""

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

    def reading(self) -> Reading:
        return Reading(
            self.encoding,
            self.question_column,
            self.passage_column,
            self.answer_column,
            self.answer_start_column,
            self.delimiter,
            self.sheet,
        )

    def used(self) -> ColumnUse:
        """What a trained run reads of a table: questions and passages."""
        columns = (WantedColumn("question", self.question_column), WantedColumn("passage", self.passage_column))
        usual = (self.question_column, self.passage_column) == (AS_USUAL.question, AS_USUAL.passage)
        return ColumnUse(columns, columns if usual else (), options=self.reading().tables())

    def sources(self, base: Path) -> dict[str, Dataset[Record]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        return datasets(base, QuestionFormat(self.reading()), self.train, self.valid, self.test)


# ---- tokens


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    return [Column(name, vocabulary) for name in COLUMNS]


def fit(config: RunConfig, dataset: Dataset[Record], corpora: Sequence[Corpus]) -> SplitCorpora:
    max_length, sizes = config.data.max_length, np.diff(corpora[0].line_starts()) - 1
    truncated = int((question_tokens(sizes, max_length) < sizes).sum())
    verb = "is" if truncated == 1 else "are"
    questions = subject(truncated, "question", "has", "have")
    note = f"{questions} more than half of data.max_length ({max_length}) and {verb} truncated"
    return SplitCorpora(corpora, note if truncated else None)


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)
    return CheckPlan(
        CheckOptions(("question", "passage"), independent_sides=True),
        lambda: [train_tokenizer(config.tokenizer, all_texts(train))] * 2,
    )


def lines(dataset: Dataset[Record]) -> Iterator[tuple[str, None]]:
    return ((f"{record.question}\t{record.passage}", None) for record in dataset.records())


def in_memory(config: QADataConfig) -> MemoryFormat:
    """A question, its passage, the answer (a text, a list of texts, or None), and where it starts, which may be missing."""
    return MemoryFormat(
        (config.question_column, config.passage_column, config.answer_column, config.answer_start_column),
        inputs=2,
        optional=(config.answer_start_column,),
    )
