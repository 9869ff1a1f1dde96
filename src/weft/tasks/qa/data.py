"""Which questions about passages a split is, and the [data] table of tasks that answer them by a part of the passage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from weft.data.input_records import ColumnUse
from weft.data.memory import MemoryFormat
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.tasks.data_spec import Column, Fitted
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

    def fault(self) -> None:
        """Nothing is known that would be wrong with all of them."""

    def notes(self) -> list[str]:
        """What is worth knowing."""
        notes = list(self.files.notes)
        if self.files.blank:
            notes.append(f"blank lines that were skipped: {self.files.blank:,}")
        if self.guessed:
            notes.append(
                f"answers that stand in their passage more than once, and have no start: {self.guessed:,}; the first is meant"
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
    kept: bool = False

    @property
    def encoding(self) -> str:
        return self.reading.encoding

    def files(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return given

    def apart(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, given: tuple[Path, ...], seen: FileSummary) -> Iterator[Record]:
        return read_records(given, self.reading, seen)

    def summary(self, given: tuple[Path, ...], seen: FileSummary) -> QuestionSummary:
        return QuestionSummary(seen)

    def texts(self, record: Record) -> tuple[str, ...]:
        return record.question, record.passage

    def shown(self, column: str) -> str:
        return column

    def provenance(self, given: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {**self.reading.provenance(), "side": COLUMNS.index(column), "files": fingerprints(given)}


class QADataConfig(Config):
    """Which questions about which passages, and how they are read."""

    train: Files
    valid: Split = None  # files, or the share of train that is taken off its end: questions beside each other share a passage
    test: Split = None  # likewise; the order is train, valid, test
    encoding: str = "utf-8"
    delimiter: Delimiter = None  # between the columns of .csv and .tsv, if not what their first line shows; or "tab"
    sheet: Sheet = None  # of .xlsx: a name, or a place from 1; the first, unless given
    # columns of tables, or keys of JSONL; SQuAD's JSON has names of its own
    question_column: str = "question"
    passage_column: str = "passage"
    answer_column: str = "answer"
    answer_start_column: str = "start"  # may be missing: then an answer is the first part of its passage that reads so
    max_length: int = Field(
        384, ge=8, le=2**31 - 1
    )  # tokens read at once: question and a window of the passage, <s>, </s>, </s>
    doc_stride: int = Field(128, ge=1)  # tokens of the passage from one window to the next
    max_answer_length: int = Field(30, ge=1)  # tokens: no longer answer is said

    @model_validator(mode="after")
    def check_options(self) -> Self:
        check_splits(self.train, self.valid, self.test, self.encoding)
        columns = {
            option: getattr(self, option)
            for option in ("question_column", "passage_column", "answer_column", "answer_start_column")
        }
        for option, name in columns.items():
            if not name:
                raise ValueError(f"{option}='' names no column")
        if len(set(columns.values())) < len(columns):
            raise ValueError("question, passage, answer and start name one column twice; give each its own")
        if self.doc_stride >= self.max_length:
            raise ValueError(
                f"stride={self.doc_stride} must be less than longest={self.max_length}, or tokens lie between windows"
            )
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

    def with_defaults(self) -> Self:
        """The same with every option that applies filled in: all are."""
        return self

    def sources(self, base: Path) -> dict[str, Dataset[Record]]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        return datasets(base, QuestionFormat(self.reading()), self.train, self.valid, self.test)


# ---- tokens


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    return [Column(name, vocabulary) for name in COLUMNS]


def fit(config: RunConfig, dataset: Dataset[Record], corpora: Sequence[Corpus]) -> Fitted:
    max_length, sizes = config.data.max_length, np.diff(corpora[0].line_starts()) - 1
    truncated = int((question_tokens(sizes, max_length) < sizes).sum())
    verb = "is" if truncated == 1 else "are"
    questions = subject(truncated, "question", "has", "have")
    note = f"{questions} more than half of data.max_length ({max_length}) and {verb} truncated"
    return Fitted(corpora, note if truncated else None)


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
