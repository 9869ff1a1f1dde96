"""The data of word vectors: text to train on, and suites to test with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from weft.config import Choice, invalid
from weft.data.config import DataFilesConfig, Files, expand_files, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.source import Source
from weft.errors import DataError
from weft.tasks.word_vectors.suites import SuiteFormat
from weft.text.pipelines import SPECIALS
from weft.text.reading import as_paths
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_word_tokenizer

if TYPE_CHECKING:
    from weft.data.input_records import InputFile, OpenedRecords
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, TextsWithProgress

FILE = "tokenizer.json"
NEWLINE = len(SPECIALS)  # the token of a line end
FIRST_WORD = NEWLINE + 1  # words are the tokens from here on


class VectorTokenizerConfig(TokenizerConfig):
    """How text is split into words."""

    type: Annotated[str, Choice(("word", "whitespace"), "type")] = "word"
    """word: words and punctuation marks. whitespace: split at spaces, for text that is already tokenized."""
    vocab_size: int = 200_000
    """Maximum number of words, with four special tokens."""
    lowercase: bool = True
    """Lowercase all text."""
    min_count: int = Field(5, ge=1)
    """Words that occur less often have no vector."""


class VectorDataConfig(DataFilesConfig):
    """Text to train on; words in different lines are not neighbors."""

    valid: Files | None = None
    """Files of pairs of words with their similarity, or of analogies, which are scored after training."""
    test: Files | None = None
    """Files of pairs of words with their similarity, or of analogies. Read only by weft evaluate and weft compare."""

    @model_validator(mode="after")
    def check_fold(self) -> Self:
        if self.fold is not None:
            raise invalid("fold", "not used: word vectors are tested with pairs of words, not with text", "remove it")
        return self

    def sources(self, base: Path) -> dict[str, Any]:
        """The text, and the suites of each split that is set."""
        suites = {name: files for name, files in (("valid", self.valid), ("test", self.test)) if files is not None}
        text = {} if self.train is False else {"train": Source(expand_files(base, self.train), self.encoding, False)}
        return {**text, **{name: suite_dataset(base, files, self.encoding) for name, files in suites.items()}}


def suite_dataset(base: Path, paths: Files, encoding: str) -> Dataset[Any]:
    """The suites in some files; each file is one."""
    return Dataset(tuple(base / path for path in as_paths(paths)), SuiteFormat(encoding))


class WordVocabulary:
    """Builds the vocabulary: words that are frequent enough, the most frequent first."""

    def build(self, config: RunConfig, dataset: Source, with_progress: TextsWithProgress, note: Note) -> Tokenizer:
        if config.tokenizer.file is not None:
            tokenizer = Tokenizer.load(Path(config.tokenizer.file))
        else:
            min_count = config.tokenizer.min_count
            tokenizer = train_word_tokenizer(config.tokenizer, with_progress(dataset.texts()), min_count=min_count)
        if tokenizer.vocab_size <= FIRST_WORD + 1:
            problem = f"has fewer than two words that occur at least {config.tokenizer.min_count} times"
            raise DataError(dataset.name, problem, "use more text or lower tokenizer.min_count")
        return tokenizer

    def save(self, vocabulary: Tokenizer, directory: Path) -> None:
        vocabulary.save(directory / FILE)

    def load(self, directory: Path) -> Tokenizer:
        return Tokenizer.load(directory / FILE)


def words_of(tokenizer: Tokenizer) -> list[str]:
    """The words that have vectors, in the order of their rows."""
    return [tokenizer.id_to_token(token) for token in range(FIRST_WORD, tokenizer.vocab_size)]


def read_words(corpus: Corpus) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The words of a text as rows of the vectors, and the line of each. Words without a vector are left out: those around them
    become neighbors, as in word2vec."""
    tokens = np.asarray(corpus.tokens)
    lines = np.cumsum(tokens == NEWLINE, dtype=np.int32)
    is_word = tokens >= FIRST_WORD
    return tokens[is_word].astype(np.int32) - np.int32(FIRST_WORD), lines[is_word]


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)

    def tokenizers() -> list[Tokenizer]:
        return [train_word_tokenizer(config.tokenizer, train.texts(), min_count=config.tokenizer.min_count)]

    return CheckPlan(CheckOptions(("line",), min_chars=40), tokenizers)


def open_words(config: VectorDataConfig, file: InputFile) -> OpenedRecords | None:
    """None: the inputs are lines of text."""


def lines(dataset: Any) -> Iterator[tuple[str, str | None]]:
    """The records of a data set as lines: words of suites, or lines of text."""
    for row in dataset.rows():
        yield row.texts[0], None
