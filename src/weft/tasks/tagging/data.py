"""Which tagged sentences a split is, and the [data] table of tasks that give every word a tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import OneOf, Table
from weft.data.columns import Name
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset, TextColumn
from weft.data.findings import Checked, CheckPlan
from weft.data.source import fingerprints
from weft.data.summary import listed
from weft.data.tables import Files, Split, check_splits, datasets, training
from weft.errors import DataError
from weft.metrics.spans import repair, scheme_of, validate
from weft.tasks.data_spec import Column, Fitted
from weft.tasks.tagging.files import Reading, Sentence, read_sentences
from weft.text.gate import SHOWN, Seen, listed_files, many, shown
from weft.text.labelled_tokens import LabelledTokens, load_labelled
from weft.text.labels import Labels
from weft.text.tokenizers import KINDS, Tokenizer, TokenizerTable, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.tasks.data_spec import Note, Watched

AS_USUAL = Reading()


@dataclass
class TaggedSummary:
    """What was found in tagged files."""

    files: Seen  # line ends, encoding, notes; it counts no lines
    count: int = 0  # sentences
    words: int = 0
    longest: int = 0  # words of a sentence
    characters: int = 0  # of the words
    bytes: int = 0
    tags: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)  # words and tags

    @property
    def crlf(self) -> int:
        return self.files.crlf

    def add(self, record: Sentence) -> None:
        self.count += 1
        self.words += len(record.words)
        self.longest = max(self.longest, len(record.words))
        self.tags.update(record.tags)
        text = "".join(record.words)
        self.characters += len(text)
        self.bytes += len(text) if text.isascii() else len(text.encode())
        if len(self.examples) < 3:
            self.examples.append((record.words[:SHOWN], record.tags[:SHOWN]))

    def bytes_of(self, column: str) -> int:
        return self.bytes

    def strata(self) -> None:
        """Sentences beside each other are alike: shares are taken off the end."""

    def fault(self) -> None:
        """Words share their tags."""

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, tags, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {many(self.count, 'sentence')} of {many(self.words, 'word')} (the longest"
            f" of {self.longest:,}) with {many(len(self.tags), 'tag')}, {self.files.written}"
        ]
        rows += [f"  note: {shown(note, 200)}" for note in self.files.notes]
        rows.append(f"  tags: {listed(self.tags)}")
        for words, tags in self.examples:
            text = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
            rows.append(f"  e.g.: {shown(text)}")
        return "\n".join(rows)


@dataclass(frozen=True)
class TaggedFormat:
    """Sentences with tagged words; kept, for training asks for them again and again."""

    reading: Reading = AS_USUAL
    columns: tuple[str, ...] = ("words",)
    rows: str = "sentences"
    kept: bool = True

    @property
    def encoding(self) -> str:
        return self.reading.encoding

    def files(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return given

    def apart(self, given: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, given: tuple[Path, ...], seen: Seen) -> Iterator[Sentence]:
        one = dict[str, str]()  # of equal words and tags, of which there are many, one is kept
        for sentence in read_sentences(given, self.reading, seen):
            words, tags = (tuple(one.setdefault(text, text) for text in texts) for texts in (sentence.words, sentence.tags))
            yield sentence._replace(words=words, tags=tags)

    def summary(self, given: tuple[Path, ...], seen: Seen) -> TaggedSummary:
        return TaggedSummary(seen)

    def texts(self, record: Sentence) -> tuple[str, ...]:
        """Its words with blanks between."""
        return (" ".join(record.words),)

    def shown(self, column: str) -> str:
        return ""

    def origin(self, given: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {**asdict(self.reading), "files": fingerprints(given)}


def words_of(record: Sentence) -> tuple[str, ...]:
    return record.words


def words(dataset: Dataset[Sentence]) -> TextColumn[Sentence]:
    """The words of all sentences, each a line."""
    return dataset.column("words", words_of)


def sentence_lengths(dataset: Dataset[Sentence]) -> np.ndarray:
    """int64 (N,): the words of each sentence."""
    return np.array([len(record.words) for record in dataset.records()], dtype=np.int64)


def tags_of(dataset: Dataset[Sentence]) -> list[str]:
    """The tag of every word, sentence after sentence."""
    return [tag for record in dataset.records() for tag in record.tags]


def refuse_long(corpus: Corpus, dataset: Dataset[Sentence], *, longest: int) -> None:
    """Refuse sentences of more than `longest` tokens, <s> and </s> counted, with the place of the first; `corpus` has the
    words of the data set. None can be cut: every word needs a tag."""
    starts = corpus.line_starts()
    edges = np.concatenate([[0], np.cumsum(sentence_lengths(dataset))])
    # every word ends with a </s> in the corpus, and none in a sentence
    lengths = 2 + np.diff(starts[edges] - edges)
    long = np.flatnonzero(lengths > longest)
    if len(long):
        place, more = dataset.place(int(long[0])), f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
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

    def sources(self, base: Path) -> dict[str, Dataset[Sentence]]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        return datasets(base, TaggedFormat(self.reading()), self.train, self.valid, self.test)


# ---- tokens


class SpaceTable(TokenizerTable):
    """How tagged words become tokens."""

    kind: Annotated[str, OneOf(KINDS, "kind")] = "space"


def learned_tags(dataset: Dataset[Sentence]) -> tuple[list[str], int]:
    """The tags to learn from, one after another: where they mark spans, valid ones that mark the same; and how many sentences
    had others."""
    scheme = scheme_of(set(tags_of(dataset)))
    if scheme is None:
        return tags_of(dataset), 0
    given = [record.tags for record in dataset.records()]
    wrong = [bool(validate(tags, scheme)) for tags in given]
    mended = [repair(tags, scheme) if bad else tags for tags, bad in zip(given, wrong, strict=True)]
    return list(chain.from_iterable(mended)), sum(wrong)


def spells(settings: Settings) -> bool:
    """Whether words are read letter by letter, too."""
    return settings.model.letters() is not None


class TaggedVocabulary:
    """A tokenizer of words, one of letters where words are spelled, and the tags of training."""

    def make(self, settings: Settings, dataset: Dataset[Sentence], watched: Watched, note: Note) -> LabelledTokens:
        def made(table: TokenizerTable) -> Tokenizer:
            return train_tokenizer(table, watched(words(dataset).texts()))

        letters = made(TokenizerTable(kind="char")) if spells(settings) else None
        tags, mended = learned_tags(dataset)
        if mended:
            note(f"{mended:,} sentences have tags that no scheme writes so; they are mended, and mark the same spans")
        return LabelledTokens(made(settings.tokenizer), Labels.count(tags), letters)

    def save(self, vocabulary: LabelledTokens, folder: Path) -> None:
        vocabulary.save(folder)

    def load(self, folder: Path) -> LabelledTokens:
        return load_labelled(folder)


def columns(settings: Settings, vocabulary: LabelledTokens) -> list[Column]:
    """The words as tokens, and spelled where they are: each a line."""
    found = [Column("words", vocabulary.tokenizer, words_of)]
    return found if vocabulary.letters is None else [*found, Column("letters", vocabulary.letters, words_of)]


def fit(settings: Settings, dataset: Dataset[Sentence], corpora: Sequence[Corpus]) -> Fitted:
    refuse_long(corpora[0], dataset, longest=settings.data.longest)
    return Fitted(corpora)


def invalid(labels: Sequence[tuple[str, ...]]) -> np.ndarray:
    """bool (N,): which sentences have tags that mark spans otherwise than their scheme does."""
    scheme = scheme_of({tag for tags in labels for tag in tags})
    return np.array([scheme is not None and bool(validate(tags, scheme)) for tags in labels], dtype=bool)


def check(settings: Settings) -> CheckPlan:
    train = training(settings.datasets)
    checked = Checked(
        ("sentence",),
        settings.data.longest,
        labels="tag",
        labels_of=lambda record: record.tags,
        words=words_of,
        spelled=spells(settings),
        invalid=invalid,
    )
    return CheckPlan(checked, lambda: [train_tokenizer(settings.tokenizer, words(train).texts())])


def lines(dataset: Dataset[Sentence]) -> Iterator[tuple[str, None]]:
    return ((" ".join(record.words), None) for record in dataset.records())
