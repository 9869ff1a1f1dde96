"""Tokenizers of the two sides of pairs: one for both (joint subwords), or one each (letters in, phones out)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import model_validator

from weft import files
from weft.text.tokenizers import Tokenizer, TokenizerTable, train_tokenizer

Texts = Callable[[], Iterator[str]]
JOINT = "tokenizer.json"
SEPARATE = ("tokenizer.source.json", "tokenizer.target.json")


class SidesTable(TokenizerTable):
    """How sources and targets become tokens: alike, or each side as its own table says."""

    source: TokenizerTable | None = None
    target: TokenizerTable | None = None

    @model_validator(mode="after")
    def whole(self) -> Self:
        given = [name for name in ("source", "target") if getattr(self, name) is not None]
        if len(given) == 1:
            other = "target" if given == ["source"] else "source"
            raise ValueError(f"{given[0]} is given and {other} is not: give both, or one tokenizer for both sides")
        beside = [name for name in ("kind", "size", "lowercase", "file") if name in self.model_fields_set]
        if given and beside:
            raise ValueError(f"{beside[0]} is for both sides, but source and target have tables of their own; drop it")
        return self


class Sides(NamedTuple):
    source: Tokenizer
    target: Tokenizer

    @property
    def hash(self) -> str:
        """What names the two: the tokenizer's own where it is one."""
        return self.source.hash if self.shared else sha256(f"{self.source.hash} {self.target.hash}".encode()).hexdigest()

    def named(self) -> dict[str, Tokenizer]:
        """What a person calls each of them."""
        return self.source.named() if self.shared else {"source tokenizer": self.source, "target tokenizer": self.target}

    @property
    def shared(self) -> bool:
        """Whether a number means the same token on both sides."""
        return self.source.hash == self.target.hash


def train_sides(table: SidesTable, source_texts: Texts, target_texts: Texts) -> Sides:
    """A tokenizer for all texts, or one for each side: the same texts give the same files, byte for byte."""
    if table.source is None or table.target is None:
        both = train_tokenizer(table, chain.from_iterable(texts() for texts in (source_texts, target_texts)))
        return Sides(both, both)
    return Sides(train_tokenizer(table.source, source_texts()), train_tokenizer(table.target, target_texts()))


def save_sides(sides: Sides, folder: Path) -> None:
    """One file where both are the same, else two; what an earlier run left there of the other sort is removed."""
    for name in SEPARATE if sides.shared else (JOINT,):
        files.remove(folder / name)
    if sides.shared:
        sides.source.save(folder / JOINT)
        return
    for tokenizer, name in zip(sides, SEPARATE, strict=True):
        tokenizer.save(folder / name)


def load_sides(folder: Path) -> Sides:
    """The tokenizers of a run, as `save_sides` left them."""
    if (folder / JOINT).exists():
        both = Tokenizer.load(folder / JOINT)
        return Sides(both, both)
    source, target = (Tokenizer.load(folder / name) for name in SEPARATE)
    return Sides(source, target)


def tokenizer_files(folder: Path) -> list[Path]:
    """Where a run keeps its tokenizer, or its two."""
    return [folder / name for name in (JOINT, *SEPARATE) if (folder / name).exists()]
