"""Tokenizers of source and target: a joint one (for example, shared subwords), or one for each (letters to phones)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import model_validator

from weft import files
from weft.config import invalid
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer

Texts = Callable[[], Iterator[str]]
JOINT = "tokenizer.json"
SEPARATE = ("tokenizer.source.json", "tokenizer.target.json")


class TokenizerPairConfig(TokenizerConfig):
    """One tokenizer for sources and targets, or one for each."""

    source: TokenizerConfig | None = None
    """A separate tokenizer for source texts."""
    target: TokenizerConfig | None = None
    """A separate tokenizer for target texts."""

    @model_validator(mode="after")
    def check_sides(self) -> Self:
        sides = [name for name in ("source", "target") if getattr(self, name) is not None]
        if len(sides) == 1:
            missing = "target" if sides == ["source"] else "source"
            raise invalid(missing, "missing", f"add [tokenizer.{missing}], or use one [tokenizer] for both sides")
        shared = [name for name in ("type", "vocab_size", "lowercase", "file") if name in self.model_fields_set]
        if sides and shared:
            problem = "not used with [tokenizer.source] and [tokenizer.target]"
            raise invalid(shared[0], problem, "move it into them or remove it")
        return self


class TokenizerPair(NamedTuple):
    source: Tokenizer
    target: Tokenizer

    @property
    def hash(self) -> str:
        """Hash of both tokenizers; the hash of the tokenizer if they share one."""
        return self.source.hash if self.is_shared else sha256(f"{self.source.hash} {self.target.hash}".encode()).hexdigest()

    def by_name(self) -> dict[str, Tokenizer]:
        """Tokenizers by their names in output."""
        return self.source.by_name() if self.is_shared else {"source tokenizer": self.source, "target tokenizer": self.target}

    @property
    def is_shared(self) -> bool:
        """Whether source and target use the same tokenizer."""
        return self.source.hash == self.target.hash


def train_tokenizer_pair(config: TokenizerPairConfig, source_texts: Texts, target_texts: Texts) -> TokenizerPair:
    """Train a joint tokenizer, or one for each side. Equal texts give byte-identical files."""
    if config.source is None or config.target is None:
        joint = train_tokenizer(config, chain.from_iterable(texts() for texts in (source_texts, target_texts)))
        return TokenizerPair(joint, joint)
    return TokenizerPair(train_tokenizer(config.source, source_texts()), train_tokenizer(config.target, target_texts()))


def save_tokenizer_pair(pair: TokenizerPair, directory: Path) -> None:
    """Save one file for a joint tokenizer, else two. Files of the other kind, from a previous run, are removed."""
    for name in SEPARATE if pair.is_shared else (JOINT,):
        files.remove(directory / name)
    if pair.is_shared:
        pair.source.save(directory / JOINT)
        return
    for tokenizer, name in zip(pair, SEPARATE, strict=True):
        tokenizer.save(directory / name)


def load_tokenizer_pair(directory: Path) -> TokenizerPair:
    """Load the files that `save_tokenizer_pair` wrote."""
    if (directory / JOINT).exists():
        joint = Tokenizer.load(directory / JOINT)
        return TokenizerPair(joint, joint)
    source, target = (Tokenizer.load(directory / name) for name in SEPARATE)
    return TokenizerPair(source, target)


def tokenizer_files(directory: Path) -> list[Path]:
    """The tokenizer files that exist in a directory."""
    return [directory / name for name in (JOINT, *SEPARATE) if (directory / name).exists()]
