"""Vocabularies that are one tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from weft.config import Choice
from weft.data.dataset import Dataset
from weft.text.tokenizers import TYPES, Tokenizer, TokenizerConfig, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, TextsWithProgress

FILE = "tokenizer.json"


class WordTokenizerConfig(TokenizerConfig):
    """The tokenizer of texts: words by default."""

    type: Annotated[str, Choice(TYPES, "type")] = "word"


def all_texts(dataset: Dataset[Any]) -> Iterator[str]:
    """All texts, column by column."""
    return chain.from_iterable(dataset.texts(column) for column in dataset.format.columns)


class TokenizerOnly:
    """Builds a vocabulary that is one tokenizer, trained on `texts(dataset)` of the training data."""

    def __init__(self, texts: Callable[[Any], Iterator[str]]) -> None:
        self.texts = texts

    def build(self, config: RunConfig, dataset: Any, with_progress: TextsWithProgress, note: Note) -> Tokenizer:
        return train_tokenizer(config.tokenizer, with_progress(self.texts(dataset)))

    def save(self, vocabulary: Tokenizer, directory: Path) -> None:
        vocabulary.save(directory / FILE)

    def load(self, directory: Path) -> Tokenizer:
        return Tokenizer.load(directory / FILE)
