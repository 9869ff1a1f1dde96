"""Tokenizers of the two sides of pairs: one for both (joint subwords), or one each (letters in, phones out)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import model_validator

from weft import files
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer

Texts = Callable[[], Iterator[str]]
JOINT = "tokenizer.json"
SEPARATE = ("tokenizer.source.json", "tokenizer.target.json")


class TokenizerPairConfig(TokenizerConfig):
    """How sources and targets become tokens: alike, or each side as its own table says."""

    source: TokenizerConfig | None = None
    target: TokenizerConfig | None = None

    @model_validator(mode="after")
    def check_complete(self) -> Self:
        given = [name for name in ("source", "target") if getattr(self, name) is not None]
        if len(given) == 1:
            other = "target" if given == ["source"] else "source"
            raise ValueError(f"{given[0]} is given and {other} is not: give both, or one tokenizer for both sides")
        beside = [name for name in ("type", "vocab_size", "lowercase", "file") if name in self.model_fields_set]
        if given and beside:
            raise ValueError(f"{beside[0]} is for both sides, but source and target have tables of their own; drop it")
        return self


class TokenizerPair(NamedTuple):
    source: Tokenizer
    target: Tokenizer

    @property
    def hash(self) -> str:
        """What names the two: the tokenizer's own where it is one."""
        return self.source.hash if self.is_shared else sha256(f"{self.source.hash} {self.target.hash}".encode()).hexdigest()

    def by_name(self) -> dict[str, Tokenizer]:
        """What a person calls each of them."""
        return self.source.by_name() if self.is_shared else {"source tokenizer": self.source, "target tokenizer": self.target}

    @property
    def is_shared(self) -> bool:
        """Whether a number means the same token on both sides."""
        return self.source.hash == self.target.hash


def train_tokenizer_pair(config: TokenizerPairConfig, source_texts: Texts, target_texts: Texts) -> TokenizerPair:
    """A tokenizer for all texts, or one for each side: the same texts give the same files, byte for byte."""
    if config.source is None or config.target is None:
        both = train_tokenizer(config, chain.from_iterable(texts() for texts in (source_texts, target_texts)))
        return TokenizerPair(both, both)
    return TokenizerPair(train_tokenizer(config.source, source_texts()), train_tokenizer(config.target, target_texts()))


def save_tokenizer_pair(sides: TokenizerPair, directory: Path) -> None:
    """One file where both are the same, else two; what an earlier run left there of the other sort is removed."""
    for name in SEPARATE if sides.is_shared else (JOINT,):
        files.remove(directory / name)
    if sides.is_shared:
        sides.source.save(directory / JOINT)
        return
    for tokenizer, name in zip(sides, SEPARATE, strict=True):
        tokenizer.save(directory / name)


def load_tokenizer_pair(directory: Path) -> TokenizerPair:
    """The tokenizers of a run, as `save_sides` left them."""
    if (directory / JOINT).exists():
        both = Tokenizer.load(directory / JOINT)
        return TokenizerPair(both, both)
    source, target = (Tokenizer.load(directory / name) for name in SEPARATE)
    return TokenizerPair(source, target)


def tokenizer_files(directory: Path) -> list[Path]:
    """Where a run keeps its tokenizer, or its two."""
    return [directory / name for name in (JOINT, *SEPARATE) if (directory / name).exists()]
