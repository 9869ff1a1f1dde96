"""Tokenizers and label vocabulary of classification and tagging runs."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from weft import files
from weft.text.labels import LabelVocabulary
from weft.text.tokenizers import Tokenizer

TOKENIZER_FILE, CHAR_TOKENIZER_FILE, LABELS_FILE = "tokenizer.json", "tokenizer.char.json", "labels.json"


class LabelTokenizer(NamedTuple):
    tokenizer: Tokenizer
    labels: LabelVocabulary
    char_tokenizer: Tokenizer | None = None  # for taggers with a character encoder

    @property
    def hash(self) -> str:
        """Hash of the tokenizers and the labels."""
        hashes = [part.hash for part in self if part is not None]
        return sha256(" ".join(hashes).encode()).hexdigest()

    def by_name(self) -> dict[str, Tokenizer]:
        """Tokenizers by their names in output."""
        return self.tokenizer.by_name() | ({} if self.char_tokenizer is None else {"character tokenizer": self.char_tokenizer})

    def save(self, directory: Path) -> None:
        self.tokenizer.save(directory / TOKENIZER_FILE)
        self.labels.save(directory / LABELS_FILE)
        files.remove(directory / CHAR_TOKENIZER_FILE)
        if self.char_tokenizer is not None:
            self.char_tokenizer.save(directory / CHAR_TOKENIZER_FILE)


def load_label_tokenizer(directory: Path) -> LabelTokenizer:
    """Load the files that `save` wrote."""
    char_file = directory / CHAR_TOKENIZER_FILE
    char_tokenizer = Tokenizer.load(char_file) if char_file.exists() else None
    return LabelTokenizer(
        Tokenizer.load(directory / TOKENIZER_FILE), LabelVocabulary.load(directory / LABELS_FILE), char_tokenizer
    )
