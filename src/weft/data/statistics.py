"""What a pass over a split keeps of its lines or pairs: a few numbers each, from which all findings are worked out.

Shapes: N rows, S sides (1 in a text, 2 in pairs).
"""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from weft.data.dataset import Dataset, R
from weft.data.source import Row
from weft.text.tokenizers import Tokenizer

ROWS = 1 << 12  # tokenised at once
# so many lines with unknown parts are looked at closely, and so many are decoded again
MAX_DECODED = 20_000
DECODED = 1_000

# what is odd about a text
PADDED, DECOMPOSED, RETURN, BREAK = 1, 2, 4, 8


class Split(Protocol):
    """A text or pairs, to be read row by row."""

    @property
    def summary(self) -> Any:
        """What the whole files hold; `crlf` is among it."""

    def rows(self) -> Iterator[Row]: ...


@dataclass(frozen=True)
class SplitStatistics:
    """A split of N rows and S sides, without its text."""

    lengths: np.ndarray  # int64 (N, S), characters
    hashes: np.ndarray  # int64 (N, S)
    unusual: np.ndarray  # uint8 (N, S), see above
    crlf: int  # in the whole files

    def keys(self) -> np.ndarray:
        """int64 (N,): equal for equal rows."""
        key = self.hashes[:, 0].copy()
        for column in self.hashes[:, 1:].T:
            key = key * 1_000_003 ^ column  # wraps around
        return key


def _find_unusual(text: str) -> int:
    padded = PADDED if text != text.strip() else 0
    decomposed = 0 if text.isascii() or unicodedata.is_normalized("NFC", text) else DECOMPOSED
    return padded | decomposed | (RETURN if "\r" in text else 0) | (BREAK if "\n" in text else 0)


def collect_statistics(split: Split) -> SplitStatistics:
    """A split, read once."""
    lengths, hashes, odd, sides = array("q"), array("q"), array("B"), 1
    for row in split.rows():
        sides = len(row.texts)
        lengths.extend(map(len, row.texts))
        hashes.extend(map(hash, row.texts))
        odd.extend(map(_find_unusual, row.texts))
    columns = [np.asarray(part).reshape(-1, sides) for part in (lengths, hashes, odd)]
    return SplitStatistics(columns[0], columns[1], columns[2], split.summary.crlf)


class TokenCounts:
    """One side of N rows as its tokenizer sees it, made batch after batch."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._tokens, self._unknown = array("q"), array("q")
        # what is unknown, in the first LOOKED_AT rows that have anything unknown
        self.pieces: Counter[str] = Counter()
        self.looked_at = 0
        # of the first DECODED rows that have nothing unknown: those that decode to another text, and the first such
        self.decoded = self.changed = 0
        self.change: tuple[str, str] | None = None

    @property
    def tokens(self) -> np.ndarray:
        """int64 (N,): how many each row has, </s> counted."""
        return np.asarray(self._tokens)

    @property
    def unknown(self) -> np.ndarray:
        """int64 (N,): how many of them are <unk>."""
        return np.asarray(self._unknown)

    def add(self, texts: Sequence[str], sizes: np.ndarray | None = None) -> None:
        """Some rows: each is a text, or as many texts as `sizes` (rows,) says, with one </s> behind them."""
        ids, lengths = self.tokenizer.encode_concatenated(texts)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        found = np.concatenate([[0], np.cumsum(ids == self.tokenizer.unk_id)])[ends]
        edges = np.arange(len(texts) + 1) if sizes is None else np.concatenate([[0], np.cumsum(sizes)])
        self._tokens.extend((np.diff(ends[edges]) + 1).tolist())
        self._unknown.extend(np.diff(found[edges]).tolist())
        unknown = np.diff(found).tolist()
        strange = [text for text, count in zip(texts, unknown, strict=True) if count][: MAX_DECODED - self.looked_at]
        self.looked_at += len(strange)
        self.pieces.update(self.tokenizer.count_unknown(strange))
        if not self.tokenizer.lossless:
            self._decode([text for text, count in zip(texts, unknown, strict=True) if not count])

    def _decode(self, texts: list[str]) -> None:
        for text in texts[: DECODED - self.decoded]:
            back = self.tokenizer.decode(self.tokenizer.encode(text))
            self.decoded += 1
            self.changed += back != text
            if back != text and self.change is None:
                self.change = text, back


def count_tokens(split: Split, tokenizers: Sequence[Tokenizer]) -> list[TokenCounts]:
    """Every side, read once more."""
    counted = [TokenCounts(tokenizer) for tokenizer in tokenizers]
    rows = split.rows()
    while batch := list(islice(rows, ROWS)):
        for side, texts in zip(counted, zip(*(row.texts for row in batch), strict=True), strict=True):
            side.add(texts)
    return counted


def count_words(dataset: Dataset[R], tokenizer: Tokenizer, words: Callable[[R], Sequence[str]]) -> TokenCounts:
    """Sentences, each word by itself: a tokenizer may cut it otherwise where it stands in a text."""
    counted, records = TokenCounts(tokenizer), dataset.records()
    while batch := [words(record) for record in islice(records, ROWS)]:
        counted.add(list(chain.from_iterable(batch)), np.array([len(sentence) for sentence in batch], np.int64))
    return counted
