"""What a run that labels texts or words reads with, and what it may say."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from weft import files
from weft.text.labels import Labels
from weft.text.tokenizers import Tokenizer

TOKENS, LETTERS, LABELS = "tokenizer.json", "tokenizer.letters.json", "labels.json"


class LabelledTokens(NamedTuple):
    tokenizer: Tokenizer
    labels: Labels
    letters: Tokenizer | None = None  # of taggers that spell words

    @property
    def hash(self) -> str:
        """What names all of them together."""
        hashes = [part.hash for part in self if part is not None]
        return sha256(" ".join(hashes).encode()).hexdigest()

    def named(self) -> dict[str, Tokenizer]:
        """What a person calls each tokenizer."""
        return self.tokenizer.named() | ({} if self.letters is None else {"letters": self.letters})

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / TOKENS)
        self.labels.save(folder / LABELS)
        files.remove(folder / LETTERS)
        if self.letters is not None:
            self.letters.save(folder / LETTERS)


def load_labelled(folder: Path) -> LabelledTokens:
    """As `save` left them."""
    letters = Tokenizer.load(folder / LETTERS) if (folder / LETTERS).exists() else None
    return LabelledTokens(Tokenizer.load(folder / TOKENS), Labels.load(folder / LABELS), letters)
