"""Which tagged sentences a split is, and the [data] table of tasks that give every word a tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import Table
from weft.data.columns import Name
from weft.data.corpus import Corpus
from weft.data.source import Counted, Row, called, fingerprints, in_batches
from weft.data.tables import Files, Split, check_splits, parts
from weft.errors import DataError
from weft.tasks.classification.data import listed
from weft.tasks.tagging.files import Reading, Sentence, read_sentences
from weft.text.gate import SHOWN, Seen, as_paths, listed_files, many, shown

AS_USUAL = Reading()


class Tagged(NamedTuple):
    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass
class TaggedSeen:
    """What was found in tagged files: shown to the user, so that a wrong guess is noticed early."""

    files: Seen  # line ends, encoding, notes; it counts no lines
    sentences: int = 0
    words: int = 0
    longest: int = 0  # words of a sentence
    characters: int = 0  # of the words
    bytes: int = 0
    tags: Counter[str] = field(default_factory=Counter)
    examples: list[Tagged] = field(default_factory=list)

    @property
    def crlf(self) -> int:
        return self.files.crlf

    def add(self, sentence: Sentence) -> None:
        self.sentences += 1
        self.words += len(sentence.words)
        self.longest = max(self.longest, len(sentence.words))
        self.tags.update(sentence.tags)
        text = "".join(sentence.words)
        self.characters += len(text)
        self.bytes += len(text) if text.isascii() else len(text.encode())
        if len(self.examples) < 3:
            self.examples.append(Tagged(sentence.words[:SHOWN], sentence.tags[:SHOWN]))

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, tags, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {many(self.sentences, 'sentence')} of {many(self.words, 'word')} (the longest"
            f" of {self.longest:,}) with {many(len(self.tags), 'tag')}, {self.files.written}"
        ]
        rows += [f"  note: {shown(note, 200)}" for note in self.files.notes]
        rows.append(f"  tags: {listed(self.tags)}")
        for words, tags in self.examples:
            text = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
            rows.append(f"  e.g.: {shown(text)}")
        return "\n".join(rows)


@dataclass(frozen=True)
class TaggedSource:
    """The part from `low` to `high` (shares of the sentences) of some files."""

    paths: tuple[Path, ...]
    reading: Reading = AS_USUAL
    low: float = 0.0
    high: float = 1.0

    @property
    def name(self) -> str:
        """The files, for messages."""
        return called(self.paths)

    @cached_property
    def _whole(self) -> tuple[list[Sentence], TaggedSeen]:
        """All sentences of the files, and what they hold: read once, for training asks for them again and again."""
        seen, kept = TaggedSeen(Seen(list(self.paths), self.reading.encoding)), list[Sentence]()
        one = dict[str, str]()  # of equal words and tags, of which there are many, one is kept
        for sentence in read_sentences(self.paths, self.reading, seen.files):
            seen.add(sentence)
            words, tags = (tuple(one.setdefault(text, text) for text in texts) for texts in (sentence.words, sentence.tags))
            kept.append(sentence._replace(words=words, tags=tags))
        return kept, seen

    @property
    def seen(self) -> TaggedSeen:
        """What the whole files hold."""
        return self._whole[1]

    def _span(self) -> tuple[int, int | None]:
        if (self.low, self.high) == (0.0, 1.0):
            return 0, None
        return Counted(self.name, self.seen.sentences, "sentences", "sentences").span(self.low, self.high)

    def records(self) -> Iterator[Sentence]:
        """The sentences of the part, with their places."""
        return islice(self._whole[0], *self._span())

    def sentences(self) -> Iterator[Tagged]:
        for record in self.records():
            yield Tagged(record.words, record.tags)

    def sentence_lengths(self) -> np.ndarray:
        """int64 (N,): the words of each sentence."""
        return np.array([len(record.words) for record in self.records()], dtype=np.int64)

    def tags(self) -> list[str]:
        """The tag of every word, sentence after sentence."""
        return [tag for record in self.records() for tag in record.tags]

    def labels(self) -> list[tuple[str, ...]]:
        """The tags of every sentence."""
        return [record.tags for record in self.records()]

    def own_labels(self) -> str | None:
        """What is wrong where nearly every sentence has tags of its own: nothing, for words share them."""
        return None

    def rows(self) -> Iterator[Row]:
        """Sentences as texts, their words with blanks between."""
        for record in self.records():
            yield Row((" ".join(record.words),), (record.path,), record.line)

    def place(self, number: int) -> str:
        """`file: line 7`, where a sentence, from 0, starts."""
        record = next(islice(self.records(), number, None))
        return f"{record.path}: line {record.line}"

    def words(self) -> WordLines:
        return WordLines(self)


@dataclass(frozen=True)
class WordLines:
    """The words of tagged sentences, each a line: what a corpus is made from."""

    of: TaggedSource
    lines: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.of.paths

    @property
    def name(self) -> str:
        return self.of.name

    def texts(self) -> Iterator[str]:
        for record in self.of.records():
            yield from record.words

    def batches(self) -> Iterator[list[str]]:
        return in_batches(self.texts())

    def size(self) -> int:
        return int(self.of.seen.bytes * (self.of.high - self.of.low))

    def origin(self) -> dict[str, Any]:
        part = {**asdict(self.of.reading), "lines": True, "low": self.of.low, "high": self.of.high}
        return {**part, "files": fingerprints(self.paths)}


def refuse_long(words: Corpus, source: TaggedSource, *, longest: int) -> None:
    """Refuse sentences of more than `longest` tokens, <s> and </s> counted, with the place of the first; `words` is the
    corpus of the source's words. None can be cut: every word needs a tag."""
    starts = words.line_starts()
    edges = np.concatenate([[0], np.cumsum(source.sentence_lengths())])
    # every word ends with a </s> in the corpus, and none in a sentence
    lengths = 2 + np.diff(starts[edges] - edges)
    long = np.flatnonzero(lengths > longest)
    if len(long):
        place, more = source.place(int(long[0])), f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{place}{more}: its sentence has {lengths[long[0]]:,} tokens, more than data.longest = {longest};"
            " raise that, or split it with a blank line"
        )


class TaggedTable(Table):
    """Which tagged sentences, and how they are read."""

    train: Files
    valid: Split = None  # files, or the share of train that is taken off its end: sentences beside each other are alike
    test: Split = None  # likewise; the order is train, valid, test
    encoding: str = "utf-8"
    # columns by place, from 1, or by name in CoNLL-U: form and upos unless given; else the first and the last
    word: Name | None = None
    tag: Name | None = None
    longest: int = Field(1000, ge=3, le=2**31 - 1)  # tokens of a sentence, <s> and </s> among them

    @model_validator(mode="after")
    def fits(self) -> Self:
        check_splits(self.train, self.valid, self.test, self.encoding)
        for name, column in (("word", self.word), ("tag", self.tag)):
            if column == "" or (isinstance(column, int) and column < 1):
                raise ValueError(f"{name}={column!r} names no column; give a place from 1 on, or a name")
        if self.word is not None and self.word == self.tag:
            raise ValueError(f"word and tag are both {self.word!r}; give each its own column")
        return self

    def resolved(self) -> Self:
        """The same with every option that applies filled in: columns are the format's own business."""
        return self

    def reading(self) -> Reading:
        return Reading(self.encoding, self.word, self.tag)

    def sources(self, base: Path) -> dict[str, TaggedSource]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        reading = self.reading()
        return {
            name: TaggedSource(tuple(base / path for path in as_paths(files)), reading, low, high)
            for name, (files, low, high) in parts(self.train, self.valid, self.test).items()
        }
