"""Which questions about passages a split is, and the [data] table of tasks that answer them by a part of the passage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from weft.config import Table
from weft.data.columns import Wanted
from weft.data.records import Used
from weft.data.source import Counted, Row, called, fingerprints, in_batches
from weft.data.tables import Files, Split, check_splits, parts
from weft.tasks.qa.files import Reading, Record, read_records
from weft.tasks.seq2seq.data import SideSeen
from weft.text.gate import SHOWN, Seen, as_paths, listed_files, shown

AS_USUAL = Reading()
SIDES = ("questions", "passages")


@dataclass
class AskedSeen:
    """What was found in files of questions: shown to the user, so that a wrong guess is noticed early."""

    files: Seen  # line ends, encoding, notes; it counts no lines
    sides: tuple[SideSeen, SideSeen] = field(default_factory=lambda: (SideSeen(), SideSeen()))
    count: int = 0
    answered: int = 0
    guessed: int = 0
    examples: list[tuple[str, str, str | None]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        """Of questions and passages."""
        return sum(side.characters for side in self.sides)

    @property
    def crlf(self) -> int:
        return self.files.crlf

    def add(self, record: Record) -> None:
        self.count += 1
        self.answered += bool(record.answers)
        self.guessed += record.guessed
        for side, text in zip(self.sides, (record.question, record.passage), strict=True):
            side.add(text)
        if len(self.examples) < 3:
            said = record.answers[0].text[: SHOWN + 1] if record.answers else None
            self.examples.append((record.question[: SHOWN + 1], record.passage[: SHOWN + 1], said))

    def notes(self) -> list[str]:
        """What is worth knowing."""
        told = list(self.files.notes)
        if self.files.blank:
            told.append(f"blank lines that were skipped: {self.files.blank:,}")
        if self.guessed:
            told.append(
                f"answers that stand in their passage more than once, and have no start: {self.guessed:,}; the first is meant"
            )
        return told

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {self.count:,} questions, {self.count - self.answered:,} of them without an"
            f" answer, and passages of {self.sides[1].characters:,} characters, {self.files.written}"
        ]
        rows += [f"  note: {shown(note, 200)}" for note in self.notes()]
        for question, passage, said in self.examples:
            rows.append(f"  e.g.: {shown(question)} | {shown(passage)} -> {'no answer' if said is None else shown(said)}")
        return "\n".join(rows)


@dataclass(frozen=True)
class AskedSource:
    """The part from `low` to `high` (shares of the questions) of some files."""

    paths: tuple[Path, ...]
    reading: Reading = AS_USUAL
    low: float = 0.0
    high: float = 1.0

    @property
    def name(self) -> str:
        """The files, for messages."""
        return called(self.paths)

    @cached_property
    def seen(self) -> AskedSeen:
        """What the whole files hold, read once."""
        seen = AskedSeen(Seen(list(self.paths), self.reading.encoding))
        for record in read_records(self.paths, self.reading, seen.files):
            seen.add(record)
        return seen

    def _span(self) -> tuple[int, int | None]:
        if (self.low, self.high) == (0.0, 1.0):
            return 0, None
        return Counted(self.name, self.seen.count, "questions", "questions").span(self.low, self.high)

    def records(self) -> Iterator[Record]:
        """The questions of the part, with their places."""
        seen = Seen(list(self.paths), self.reading.encoding)
        return islice(read_records(self.paths, self.reading, seen), *self._span())

    def rows(self) -> Iterator[Row]:
        for record in self.records():
            yield Row((record.question, record.passage), (record.path, record.path), record.line)

    def side(self, name: str) -> AskedSide:
        """The texts of one of SIDES."""
        return AskedSide(self, SIDES.index(name))


@dataclass(frozen=True)
class AskedSide:
    """The questions, or the passages, each a line: what a corpus is made from."""

    of: AskedSource
    at: int
    lines: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.of.paths

    @property
    def name(self) -> str:
        return f"{self.of.name} ({SIDES[self.at]})"

    def texts(self) -> Iterator[str]:
        for record in self.of.records():
            yield (record.question, record.passage)[self.at]

    def batches(self) -> Iterator[list[str]]:
        return in_batches(self.texts())

    def size(self) -> int:
        return int(self.of.seen.sides[self.at].bytes * (self.of.high - self.of.low))

    def origin(self) -> dict[str, Any]:
        part = {**asdict(self.of.reading), "side": self.at, "lines": True, "low": self.of.low, "high": self.of.high}
        return {**part, "files": fingerprints(self.paths)}


class AskedTable(Table):
    """Which questions about which passages, and how they are read."""

    train: Files
    valid: Split = None  # files, or the share of train that is taken off its end: questions beside each other share a passage
    test: Split = None  # likewise; the order is train, valid, test
    encoding: str = "utf-8"
    # columns of tables, or keys of JSONL; SQuAD's JSON has names of its own
    question: str = "question"
    passage: str = "passage"
    answer: str = "answer"
    start: str = "start"  # may be missing: then an answer is the first part of its passage that reads so
    longest: int = Field(384, ge=8, le=2**31 - 1)  # tokens read at once: question and a window of the passage, <s>, </s>, </s>
    stride: int = Field(128, ge=1)  # tokens of the passage from one window to the next
    longest_answer: int = Field(30, ge=1)  # tokens: no longer answer is said

    @model_validator(mode="after")
    def fits(self) -> Self:
        check_splits(self.train, self.valid, self.test, self.encoding)
        named = {option: getattr(self, option) for option in ("question", "passage", "answer", "start")}
        for option, name in named.items():
            if not name:
                raise ValueError(f"{option}='' names no column")
        if len(set(named.values())) < len(named):
            raise ValueError("question, passage, answer and start name one column twice; give each its own")
        if self.stride >= self.longest:
            raise ValueError(f"stride={self.stride} must be less than longest={self.longest}, or tokens lie between windows")
        return self

    def used(self) -> Used:
        """What a trained run reads of a table: questions and passages."""
        columns = (Wanted("question", self.question), Wanted("passage", self.passage))
        usual = (self.question, self.passage) == (AS_USUAL.question, AS_USUAL.passage)
        return Used(columns, columns if usual else ())

    def resolved(self) -> Self:
        """The same with every option that applies filled in: all are."""
        return self

    def sources(self, base: Path) -> dict[str, AskedSource]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        reading = Reading(self.encoding, self.question, self.passage, self.answer, self.start)
        return {
            name: AskedSource(tuple(base / path for path in as_paths(files)), reading, low, high)
            for name, (files, low, high) in parts(self.train, self.valid, self.test).items()
        }
