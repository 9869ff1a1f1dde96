"""Tagged sentences: splits, summaries, and the [data] table of tagging."""

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
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.tagging.files import Reading, Sentence, read_sentences
from weft.text.label_tokenizer import LabelTokenizer, load_label_tokenizer
from weft.text.labels import LabelVocabulary
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview, subject
from weft.text.tokenizers import TYPES, Tokenizer, TokenizerConfig, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, TextsWithProgress

DEFAULT_READING = Reading()


@dataclass
class TaggedSummary:
    """Statistics of tagged files."""

    files: FileSummary  # line ends, encoding, notes; it counts no lines
    count: int = 0  # sentences
    words: int = 0
    max_length: int = 0  # in words
    characters: int = 0  # of the words, without spaces
    bytes: int = 0
    tags: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)  # words and tags

    @property
    def num_crlf(self) -> int:
        return self.files.num_crlf

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
        """No stratified splits: neighboring sentences are similar, so fractions are taken from the end."""

    def problem(self) -> None:
        """Tags are never rejected."""

    def describe(self) -> str:
        """Description in several lines: files, sizes, encoding, line ends, notes, tags, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'sentence')}, {pluralize(self.words, 'word')} (at"
            f" most {self.max_length:,} per sentence), {pluralize(len(self.tags), 'tag')}, {self.files.encoding_info}"
        ]
        rows += [f"  note: {preview(note, 200)}" for note in self.files.notes]
        rows.append(f"  tags: {listed(self.tags)}")
        for words, tags in self.examples:
            text = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
            rows.append(f"  e.g.: {preview(text)}")
        return "\n".join(rows)


@dataclass(frozen=True)
class TaggedFormat:
    """The format of tagged sentences. They are kept in memory, because training reads them several times."""

    reading: Reading = DEFAULT_READING
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

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[Sentence]:
        interned = dict[str, str]()  # equal words and tags share one string, to save memory
        for sentence in read_sentences(inputs, self.reading, summary):
            words, tags = (
                tuple(interned.setdefault(text, text) for text in texts) for texts in (sentence.words, sentence.tags)
            )
            yield sentence._replace(words=words, tags=tags)

    def summary(self, inputs: tuple[Path, ...], files: FileSummary) -> TaggedSummary:
        return TaggedSummary(files)

    def texts(self, record: Sentence) -> tuple[str, ...]:
        """The words of a sentence, joined by spaces."""
        return (" ".join(record.words),)

    def column_label(self, column: str) -> str:
        return ""

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {**asdict(self.reading), "files": fingerprints(inputs)}


def words_of(record: Sentence) -> tuple[str, ...]:
    return record.words


def words(dataset: Dataset[Sentence]) -> TextColumn[Sentence]:
    """The words of all sentences, one word per line."""
    return dataset.column("words", words_of)


def sentence_lengths(dataset: Dataset[Sentence]) -> np.ndarray:
    """int64 (N,): number of words of each sentence."""
    return np.array([len(record.words) for record in dataset.records()], dtype=np.int64)


def tags_of(dataset: Dataset[Sentence]) -> list[str]:
    """The tags of all words, concatenated over sentences."""
    return [tag for record in dataset.records() for tag in record.tags]


def refuse_long(corpus: Corpus, dataset: Dataset[Sentence], *, max_length: int) -> None:
    """Raise if a sentence has more than `max_length` tokens, including <s> and </s>. Sentences cannot be truncated, because
    every word needs a tag. `corpus` has the words of the data set, one per line."""
    starts = corpus.line_starts()
    edges = np.concatenate([[0], np.cumsum(sentence_lengths(dataset))])
    # in the corpus, every word ends with </s>, which does not count here
    lengths = 2 + np.diff(starts[edges] - edges)
    long = np.flatnonzero(lengths > max_length)
    if len(long):
        more = f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{dataset.location(int(long[0]))}{more}",
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
        return datasets(base, TaggedFormat(self.reading()), self)


# ---- tokens


class WhitespaceTokenizerConfig(TokenizerConfig):
    """The tokenizer of tagged words: one token per word by default."""

    type: Annotated[str, Choice(TYPES, "type")] = "whitespace"


def training_tags(dataset: Dataset[Sentence]) -> tuple[list[str], int]:
    """The tags of all words for training, and the number of sentences whose span tags were invalid and are repaired."""
    scheme = scheme_of(set(tags_of(dataset)))
    if scheme is None:
        return tags_of(dataset), 0
    sentences = [record.tags for record in dataset.records()]
    is_invalid = [bool(validate(tags, scheme)) for tags in sentences]
    repaired = [repair(tags, scheme) if invalid else tags for tags, invalid in zip(sentences, is_invalid, strict=True)]
    return list(chain.from_iterable(repaired)), sum(is_invalid)


def has_char_encoder(config: RunConfig) -> bool:
    """Whether the model has a character encoder for words."""
    return config.model.resolved_char_encoder() is not None


class TaggedVocabulary:
    """A tokenizer of words, one of characters for models with a character encoder, and the tags of the training data."""

    def build(self, config: RunConfig, dataset: Dataset[Sentence], watched: TextsWithProgress, note: Note) -> LabelTokenizer:
        def train(config: TokenizerConfig) -> Tokenizer:
            return train_tokenizer(config, watched(words(dataset).texts()))

        char_tokenizer = train(TokenizerConfig(type="char")) if has_char_encoder(config) else None
        tags, num_repaired = training_tags(dataset)
        if num_repaired:
            sentences = subject(num_repaired, "sentence", "has", "have")
            note(f"{sentences} invalid span tags; the tags were repaired, the spans are unchanged")
        return LabelTokenizer(train(config.tokenizer), LabelVocabulary.count(tags), char_tokenizer)

    def save(self, vocabulary: LabelTokenizer, directory: Path) -> None:
        vocabulary.save(directory)

    def load(self, directory: Path) -> LabelTokenizer:
        return load_label_tokenizer(directory)


def columns(config: RunConfig, vocabulary: LabelTokenizer) -> list[Column]:
    """Tokens of the words, and their characters for models with a character encoder; one line per word."""
    columns = [Column("words", vocabulary.tokenizer, words_of)]
    return columns if vocabulary.char_tokenizer is None else [*columns, Column("letters", vocabulary.char_tokenizer, words_of)]


def fit(config: RunConfig, dataset: Dataset[Sentence], corpora: Sequence[Corpus]) -> SplitColumns:
    refuse_long(corpora[0], dataset, max_length=config.data.max_length)
    return SplitColumns(corpora)


def has_invalid_tags(labels: Sequence[tuple[str, ...]]) -> np.ndarray:
    """bool (N,): which sentences have invalid span tags."""
    scheme = scheme_of({tag for tags in labels for tag in tags})
    return np.array([scheme is not None and bool(validate(tags, scheme)) for tags in labels], dtype=bool)


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)
    options = CheckOptions(
        ("sentence",),
        config.data.max_length,
        labels="tag",
        labels_of=lambda record: record.tags,
        words=words_of,
        has_char_encoder=has_char_encoder(config),
        invalid_tags=has_invalid_tags,
    )
    return CheckPlan(options, lambda: [train_tokenizer(config.tokenizer, words(train).texts())])


def lines(dataset: Dataset[Sentence]) -> Iterator[tuple[str, None]]:
    return ((" ".join(record.words), None) for record in dataset.records())
