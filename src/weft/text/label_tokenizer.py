"""What a run that labels texts or words reads with, and what it may say."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from weft import files
from weft.text.labels import LabelVocabulary
from weft.text.tokenizers import Tokenizer

TOKENS, LETTERS, LABELS = "tokenizer.json", "tokenizer.char.json", "labels.json"


class LabelTokenizer(NamedTuple):
    tokenizer: Tokenizer
    labels: LabelVocabulary
    char_tokenizer: Tokenizer | None = None  # of taggers that spell words

    @property
    def hash(self) -> str:
        """What names all of them together."""
        hashes = [part.hash for part in self if part is not None]
        return sha256(" ".join(hashes).encode()).hexdigest()

    def by_name(self) -> dict[str, Tokenizer]:
        """What a person calls each tokenizer."""
        return self.tokenizer.by_name() | ({} if self.char_tokenizer is None else {"letters": self.char_tokenizer})

    def save(self, directory: Path) -> None:
        self.tokenizer.save(directory / TOKENS)
        self.labels.save(directory / LABELS)
        files.remove(directory / LETTERS)
        if self.char_tokenizer is not None:
            self.char_tokenizer.save(directory / LETTERS)


def load_label_tokenizer(directory: Path) -> LabelTokenizer:
    """As `save` left them."""
    letters = Tokenizer.load(directory / LETTERS) if (directory / LETTERS).exists() else None
    return LabelTokenizer(Tokenizer.load(directory / TOKENS), LabelVocabulary.load(directory / LABELS), letters)
