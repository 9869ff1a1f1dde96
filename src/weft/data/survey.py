"""What a pass over a split keeps of its lines or pairs: a few numbers each, from which all findings are worked out.

Shapes: N rows, S sides (1 in a text, 2 in pairs).
"""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np

from weft.data.source import Row
from weft.text.tokenizers import Tokenizer

ROWS = 1 << 12  # tokenised at once
# so many lines with unknown parts are looked at closely, and so many targets are decoded again
LOOKED_AT = 20_000
DECODED = 1_000

# what is odd about a text
PADDED, DECOMPOSED, RETURN, BREAK = 1, 2, 4, 8


class Split(Protocol):
    """A text or pairs, to be read row by row."""

    @property
    def name(self) -> str: ...

    @property
    def seen(self) -> Any:
        """What the whole files hold; `crlf` is among it."""

    def rows(self) -> Iterator[Row]: ...


@dataclass(frozen=True)
class Survey:
    lengths: np.ndarray  # int64 (N, S), characters
    hashes: np.ndarray  # int64 (N, S)
    odd: np.ndarray  # uint8 (N, S), see above
    crlf: int  # in the whole files

    def __len__(self) -> int:
        return len(self.lengths)

    def keys(self) -> np.ndarray:
        """int64 (N,): equal for equal rows."""
        key = self.hashes[:, 0].copy()
        for column in self.hashes[:, 1:].T:
            key = key * 1_000_003 ^ column  # wraps around
        return key


def _oddities(text: str) -> int:
    padded = PADDED if text != text.strip() else 0
    decomposed = 0 if text.isascii() or unicodedata.is_normalized("NFC", text) else DECOMPOSED
    return padded | decomposed | (RETURN if "\r" in text else 0) | (BREAK if "\n" in text else 0)


def survey(split: Split) -> Survey:
    """Read a split once."""
    lengths, hashes, odd, sides = array("q"), array("q"), bytearray(), 1
    for row in split.rows():
        sides = len(row.texts)
        lengths.extend(map(len, row.texts))
        hashes.extend(map(hash, row.texts))
        odd.extend(map(_oddities, row.texts))
    shape = (-1, sides)
    crlf: int = split.seen.crlf
    wide = (np.frombuffer(part, dtype=np.int64).reshape(shape) for part in (lengths, hashes))
    return Survey(*wide, np.frombuffer(odd, dtype=np.uint8).reshape(shape), crlf)


@dataclass
class Counted:
    """One side as tokens."""

    tokens: np.ndarray  # int64 (N,), </s> counted
    unknown: np.ndarray  # int64 (N,)
    pieces: Counter[str] = field(default_factory=Counter)  # what is unknown, in the first LOOKED_AT lines that have any
    decoded: int = 0  # how many lines were decoded again, and how many of them came back as others
    changed: int = 0
    change: tuple[str, str] | None = None  # the first of them before and after


class _Counter:
    """Counts one side, batch after batch."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens, self.unknown = array("q"), array("q")
        self.counted = Counted(np.zeros(0), np.zeros(0))
        self.looked_at = 0

    def add(self, texts: Sequence[str]) -> None:
        ids, lengths = self.tokenizer.encode_flat(texts)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        unknown = np.diff(np.concatenate([[0], np.cumsum(ids == self.tokenizer.unk)])[ends])
        self.tokens.extend((lengths + 1).tolist())
        self.unknown.extend(unknown.tolist())
        strange = [texts[number] for number in np.flatnonzero(unknown)][: LOOKED_AT - self.looked_at]
        self.looked_at += len(strange)
        self.counted.pieces.update(self.tokenizer.unknown(strange))
        if not self.tokenizer.lossless:
            self._decode([texts[number] for number in np.flatnonzero(unknown == 0)])

    def _decode(self, texts: list[str]) -> None:
        """Whether texts without anything unknown come back as they were."""
        for text in texts[: DECODED - self.counted.decoded]:
            back = self.tokenizer.decode(self.tokenizer.encode(text))
            self.counted.decoded += 1
            self.counted.changed += back != text
            if back != text and self.counted.change is None:
                self.counted.change = text, back

    def finish(self) -> Counted:
        self.counted.tokens, self.counted.unknown = np.asarray(self.tokens), np.asarray(self.unknown)
        return self.counted


def count_tokens(split: Split, tokenizers: Sequence[Tokenizer]) -> list[Counted]:
    """Every side as its tokenizer sees it."""
    counters = [_Counter(tokenizer) for tokenizer in tokenizers]
    rows = split.rows()
    while batch := list(islice(rows, ROWS)):
        for counter, texts in zip(counters, zip(*(row.texts for row in batch), strict=True), strict=True):
            counter.add(texts)
    return [counter.finish() for counter in counters]
