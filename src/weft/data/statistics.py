"""Per-row statistics of a split, from which the data check computes its findings.

Shapes: N rows, S sides (1 for texts, 2 for pairs).
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

BATCH_ROWS = 1 << 12  # rows tokenized at once
MAX_UNKNOWN_ROWS = 20_000  # rows whose unknown tokens are collected
MAX_DECODED_ROWS = 1_000  # rows that are detokenized to detect changes

# bits of `SplitStatistics.unusual`
OUTER_SPACE, NOT_NFC, RETURN, NEWLINE = 1, 2, 4, 8


class Split(Protocol):
    """Texts or pairs, read row by row."""

    @property
    def summary(self) -> Any:
        """Summary of the whole files, with `num_crlf`."""

    def rows(self) -> Iterator[Row]: ...


@dataclass(frozen=True)
class SplitStatistics:
    """Statistics of N rows with S sides."""

    lengths: np.ndarray  # int64 (N, S), characters
    hashes: np.ndarray  # int64 (N, S)
    unusual: np.ndarray  # uint8 (N, S): OUTER_SPACE, NOT_NFC, RETURN, NEWLINE
    num_crlf: int  # CRLF line endings in the whole files

    def keys(self) -> np.ndarray:
        """int64 (N,): hash of each row."""
        key = self.hashes[:, 0].copy()
        for column in self.hashes[:, 1:].T:
            key = key * 1_000_003 ^ column  # int64 arithmetic wraps around
        return key


def _find_unusual(text: str) -> int:
    """The bits of a text."""
    outer_space = OUTER_SPACE if text != text.strip() else 0
    not_nfc = 0 if text.isascii() or unicodedata.is_normalized("NFC", text) else NOT_NFC
    return outer_space | not_nfc | (RETURN if "\r" in text else 0) | (NEWLINE if "\n" in text else 0)


def collect_statistics(split: Split) -> SplitStatistics:
    """Read a split once and return its statistics."""
    lengths, hashes, unusual, sides = array("q"), array("q"), array("B"), 1
    for row in split.rows():
        sides = len(row.texts)
        lengths.extend(map(len, row.texts))
        hashes.extend(map(hash, row.texts))
        unusual.extend(map(_find_unusual, row.texts))
    columns = [np.asarray(values).reshape(-1, sides) for values in (lengths, hashes, unusual)]
    return SplitStatistics(columns[0], columns[1], columns[2], split.summary.num_crlf)


class TokenCounts:
    """Token counts of one side of N rows, added batch by batch."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._tokens, self._unknown = array("q"), array("q")
        # in the first MAX_UNKNOWN_ROWS rows with an unknown token
        self.unknown_texts: Counter[str] = Counter()
        self._num_unknown_rows = 0
        # of the first MAX_DECODED_ROWS rows without unknown tokens: how many change when decoded, and the first that does
        self.decoded = self.changed = 0
        self.first_change: tuple[str, str] | None = None

    @property
    def tokens(self) -> np.ndarray:
        """int64 (N,): number of tokens of each row, with </s>."""
        return np.asarray(self._tokens)

    @property
    def unknown(self) -> np.ndarray:
        """int64 (N,): number of <unk> tokens in each row."""
        return np.asarray(self._unknown)

    def add(self, texts: Sequence[str], sizes: np.ndarray | None = None) -> None:
        """Add rows. Each row is one text, or consists of `sizes` (rows,) texts. A row ends with one </s>."""
        ids, lengths = self.tokenizer.encode_concatenated(texts)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        unknown_before = np.concatenate([[0], np.cumsum(ids == self.tokenizer.unk_id)])[ends]
        edges = np.arange(len(texts) + 1) if sizes is None else np.concatenate([[0], np.cumsum(sizes)])
        self._tokens.extend((np.diff(ends[edges]) + 1).tolist())
        self._unknown.extend(np.diff(unknown_before[edges]).tolist())
        unknown = np.diff(unknown_before).tolist()
        with_unknown = [text for text, count in zip(texts, unknown, strict=True) if count]
        with_unknown = with_unknown[: MAX_UNKNOWN_ROWS - self._num_unknown_rows]
        self._num_unknown_rows += len(with_unknown)
        self.unknown_texts.update(self.tokenizer.unknown_parts(with_unknown))
        if not self.tokenizer.lossless:
            self._decode([text for text, count in zip(texts, unknown, strict=True) if not count])

    def _decode(self, texts: list[str]) -> None:
        for text in texts[: MAX_DECODED_ROWS - self.decoded]:
            decoded = self.tokenizer.decode(self.tokenizer.encode(text))
            self.decoded += 1
            self.changed += decoded != text
            if decoded != text and self.first_change is None:
                self.first_change = text, decoded


def count_tokens(split: Split, tokenizers: Sequence[Tokenizer]) -> list[TokenCounts]:
    """Token counts of every side, from one pass over the split."""
    counts = [TokenCounts(tokenizer) for tokenizer in tokenizers]
    rows = split.rows()
    while batch := list(islice(rows, BATCH_ROWS)):
        for side, texts in zip(counts, zip(*(row.texts for row in batch), strict=True), strict=True):
            side.add(texts)
    return counts


def count_words(dataset: Dataset[R], tokenizer: Tokenizer, words: Callable[[R], Sequence[str]]) -> TokenCounts:
    """Token counts of sentences whose words are tokenized separately, which can give other tokens than the whole text."""
    counts, records = TokenCounts(tokenizer), dataset.records()
    while batch := [words(record) for record in islice(records, BATCH_ROWS)]:
        counts.add(list(chain.from_iterable(batch)), np.array([len(sentence) for sentence in batch], np.int64))
    return counts
