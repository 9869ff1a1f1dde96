"""Vocabularies of one tokenizer, and how it is made unless a run file says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from weft.config import OneOf
from weft.data.dataset import Dataset
from weft.text.tokenizers import KINDS, Tokenizer, TokenizerTable, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.tasks.data_spec import Note, Watched

FILE = "tokenizer.json"


class WordTable(TokenizerTable):
    """How texts become tokens, words unless told otherwise."""

    kind: Annotated[str, OneOf(KINDS, "kind")] = "word"


def all_texts(dataset: Dataset[Any]) -> Iterator[str]:
    """Column after column."""
    return chain.from_iterable(dataset.texts(column) for column in dataset.format.columns)


class TokenizerOnly:
    """A vocabulary that is one tokenizer, trained on `texts` of the training data."""

    def __init__(self, texts: Callable[[Any], Iterator[str]]) -> None:
        self.texts = texts

    def make(self, settings: Settings, dataset: Any, watched: Watched, note: Note) -> Tokenizer:
        return train_tokenizer(settings.tokenizer, watched(self.texts(dataset)))

    def save(self, vocabulary: Tokenizer, folder: Path) -> None:
        vocabulary.save(folder / FILE)

    def load(self, folder: Path) -> Tokenizer:
        return Tokenizer.load(folder / FILE)
