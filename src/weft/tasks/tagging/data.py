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

from weft.config import Choice, invalid
from weft.data.columns import Name
from weft.data.config import DataFilesConfig, Files, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset, TextColumn
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.source import fingerprints
from weft.data.summary import listed
from weft.errors import DataError
from weft.metrics.tagging import repair, scheme_of, validate
from weft.tasks.data_spec import Column, SplitCorpora
from weft.tasks.tagging.files import Reading, Sentence, read_sentences
from weft.text.label_tokenizer import LabelTokenizer, load_label_tokenizer
from weft.text.labels import LabelVocabulary
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview, subject
from weft.text.tokenizers import TYPES, Tokenizer, TokenizerConfig, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, TextsWithProgress

AS_USUAL = Reading()


@dataclass
class TaggedSummary:
    """What was found in tagged files."""

    files: FileSummary  # line ends, encoding, notes; it counts no lines
    count: int = 0  # sentences
    words: int = 0
    max_length: int = 0  # words of a sentence
    characters: int = 0  # of the words
    bytes: int = 0
    tags: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)  # words and tags

    @property
    def crlf(self) -> int:
        return self.files.has_crlf

    def add(self, record: Sentence) -> None:
        self.count += 1
        self.words += len(record.words)
        self.max_length = max(self.max_length, len(record.words))
        self.tags.update(record.tags)
        text = "".join(record.words)
        self.characters += len(text)
        self.bytes += len(text) if text.isascii() else len(text.encode())
        if len(self.examples) < 3:
            self.examples.append((record.words[:PREVIEW_CHARS], record.tags[:PREVIEW_CHARS]))

    def bytes_of(self, column: str) -> int:
        return self.bytes

    def strata(self) -> None:
        """Neighboring sentences are similar: fractions are taken from the end."""

    def problem(self) -> None:
        """Words share their tags."""

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, tags, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'sentence')} of {pluralize(self.words, 'word')} (the"
            f" longest of {self.max_length:,}) with {pluralize(len(self.tags), 'tag')}, {self.files.written}"
        ]
        rows += [f"  note: {preview(note, 200)}" for note in self.files.notes]
        rows.append(f"  tags: {listed(self.tags)}")
        for words, tags in self.examples:
            text = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
            rows.append(f"  e.g.: {preview(text)}")
        return "\n".join(rows)


@dataclass(frozen=True)
class TaggedFormat:
    """Sentences with tagged words; kept, for training asks for them again and again."""

    reading: Reading = AS_USUAL
    columns: tuple[str, ...] = ("words",)
    rows: str = "sentences"
    in_memory: bool = True

    @property
    def encoding(self) -> str:
        return self.reading.encoding

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return inputs

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], seen: FileSummary) -> Iterator[Sentence]:
        one = dict[str, str]()  # of equal words and tags, of which there are many, one is kept
        for sentence in read_sentences(inputs, self.reading, seen):
            words, tags = (tuple(one.setdefault(text, text) for text in texts) for texts in (sentence.words, sentence.tags))
            yield sentence._replace(words=words, tags=tags)

    def summary(self, inputs: tuple[Path, ...], seen: FileSummary) -> TaggedSummary:
        return TaggedSummary(seen)

    def texts(self, record: Sentence) -> tuple[str, ...]:
        """Its words with blanks between."""
        return (" ".join(record.words),)

    def column_label(self, column: str) -> str:
        return ""

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {**asdict(self.reading), "files": fingerprints(inputs)}


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


def refuse_long(corpus: Corpus, dataset: Dataset[Sentence], *, max_length: int) -> None:
    """Refuse sentences of more than `longest` tokens, <s> and </s> counted, with the place of the first; `corpus` has the
    words of the data set. None can be cut: every word needs a tag."""
    starts = corpus.line_starts()
    edges = np.concatenate([[0], np.cumsum(sentence_lengths(dataset))])
    # every word ends with a </s> in the corpus, and none in a sentence
    lengths = 2 + np.diff(starts[edges] - edges)
    long = np.flatnonzero(lengths > max_length)
    if len(long):
        place, more = dataset.location(int(long[0])), f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{place}{more}",
            f"sentence has {lengths[long[0]]:,} tokens, more than data.max_length ({max_length})",
            "increase it or split the sentence with a blank line",
        )


class TaggedDataConfig(DataFilesConfig):
    """Sentences with a tag for each word."""

    train: Files
    word_column: Name | None = None
    """Column of the words: a 1-based index, or a name in CoNLL-U. Default: form, or the first column."""
    tag_column: Name | None = None
    """Column of the tags. Default: upos in CoNLL-U, else the last column."""
    max_length: int = Field(1000, ge=3, le=2**31 - 1)
    """Maximum length in tokens, including special tokens."""

    @model_validator(mode="after")
    def check_columns(self) -> Self:
        for option in ("word_column", "tag_column"):
            column = getattr(self, option)
            if column == "" or (isinstance(column, int) and column < 1):
                raise invalid(option, f"expected a 1-based index or a name, got {column!r}")
        if self.word_column is not None and self.word_column == self.tag_column:
            raise invalid("tag_column", f"names the same column as word_column, {self.word_column!r}")
        return self

    def reading(self) -> Reading:
        return Reading(self.encoding, self.word_column, self.tag_column)

    def sources(self, base: Path) -> dict[str, Dataset[Sentence]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        return datasets(base, TaggedFormat(self.reading()), self.train, self.valid, self.test)


# ---- tokens


class WhitespaceTokenizerConfig(TokenizerConfig):
    """The tokenizer of tagged words: one token per word by default."""

    type: Annotated[str, Choice(TYPES, "type")] = "whitespace"


def learned_tags(dataset: Dataset[Sentence]) -> tuple[list[str], int]:
    """The tags to learn from, one after another: where they mark spans, valid ones that mark the same; and how many sentences
    had others."""
    scheme = scheme_of(set(tags_of(dataset)))
    if scheme is None:
        return tags_of(dataset), 0
    sentences = [record.tags for record in dataset.records()]
    wrong = [bool(validate(tags, scheme)) for tags in sentences]
    mended = [repair(tags, scheme) if bad else tags for tags, bad in zip(sentences, wrong, strict=True)]
    return list(chain.from_iterable(mended)), sum(wrong)


def spells(config: RunConfig) -> bool:
    """Whether words are read letter by letter, too."""
    return config.model.resolved_char_encoder() is not None


class TaggedVocabulary:
    """A tokenizer of words, one of letters where words are spelled, and the tags of training."""

    def build(
        self, config: RunConfig, dataset: Dataset[Sentence], with_progress: TextsWithProgress, note: Note
    ) -> LabelTokenizer:
        def made(config: TokenizerConfig) -> Tokenizer:
            return train_tokenizer(config, with_progress(words(dataset).texts()))

        letters = made(TokenizerConfig(type="char")) if spells(config) else None
        tags, mended = learned_tags(dataset)
        if mended:
            told = subject(mended, "sentence", "has", "have")
            note(f"{told} tags that no scheme writes so; they are mended, and mark the same spans")
        return LabelTokenizer(made(config.tokenizer), LabelVocabulary.count(tags), letters)

    def save(self, vocabulary: LabelTokenizer, directory: Path) -> None:
        vocabulary.save(directory)

    def load(self, directory: Path) -> LabelTokenizer:
        return load_label_tokenizer(directory)


def columns(config: RunConfig, vocabulary: LabelTokenizer) -> list[Column]:
    """The words as tokens, and spelled where they are: each a line."""
    columns = [Column("words", vocabulary.tokenizer, words_of)]
    return columns if vocabulary.char_tokenizer is None else [*columns, Column("letters", vocabulary.char_tokenizer, words_of)]


def fit(config: RunConfig, dataset: Dataset[Sentence], corpora: Sequence[Corpus]) -> SplitCorpora:
    refuse_long(corpora[0], dataset, max_length=config.data.max_length)
    return SplitCorpora(corpora)


def has_invalid_tags(labels: Sequence[tuple[str, ...]]) -> np.ndarray:
    """bool (N,): which sentences have tags that mark spans otherwise than their scheme does."""
    scheme = scheme_of({tag for tags in labels for tag in tags})
    return np.array([scheme is not None and bool(validate(tags, scheme)) for tags in labels], dtype=bool)


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)
    checked = CheckOptions(
        ("sentence",),
        config.data.max_length,
        labels="tag",
        labels_of=lambda record: record.tags,
        words=words_of,
        has_char_encoder=spells(config),
        invalid_tags=has_invalid_tags,
    )
    return CheckPlan(checked, lambda: [train_tokenizer(config.tokenizer, words(train).texts())])


def lines(dataset: Dataset[Sentence]) -> Iterator[tuple[str, None]]:
    return ((" ".join(record.words), None) for record in dataset.records())
