"""Splits texts into units (words or characters) and enumerates the n-grams that start at each position.

N-grams form a tree: the key of an n-gram of k units is (row of its first k - 1 units) * 2^32 + its last unit. So all n-grams of
a batch of texts are looked up at once, level by level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.text.reading import check_text

BATCH_CHARS = 1 << 20
UNIT_BITS = 32  # bits of a unit in a key
_WORD = re.compile(r"\b\w\w+\b")
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_WHITESPACE_WORD = re.compile(r"\S+")
_BLANKS = re.compile(r"\s\s+")

Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]
WordIds = Mapping[str, int]


class KnownWordIds(dict[str, int]):
    """Word IDs, -1 for unknown words."""

    def __missing__(self, word: str) -> int:
        return -1


def text_batches(texts: Iterable[str], lowercase: bool) -> Iterator[list[str]]:
    """Batches of about BATCH_CHARS characters. Lone surrogates are an error."""
    batch, size, num_before = list[str](), 0, 0
    for text in chain(texts, [None]):
        if text is not None:
            batch.append(text.lower() if lowercase else text)
            size += len(text)
        if batch and (text is None or size >= BATCH_CHARS):
            _check_surrogates(batch, num_before)
            yield batch
            num_before += len(batch)
            batch, size = [], 0


def _check_surrogates(batch: list[str], num_before: int) -> None:
    try:
        "".join(batch).encode()
    except UnicodeEncodeError:
        for number, text in enumerate(batch, num_before + 1):
            check_text(text.replace("\0", " "), f"text {number}")


class Units(NamedTuple):
    """A batch of S segments as N units: word IDs or code points. N-grams do not cross the end of a segment."""

    units: Int32s  # (N,); -1 for an unknown word
    lengths: Ints  # (S,): number of units of each segment
    owner: Ints  # (S,): index of the text of each segment


def _by_pattern(pattern: re.Pattern[str], texts: list[str], word_ids: WordIds) -> Units:
    words = [pattern.findall(text) for text in texts]
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    units = np.fromiter(map(word_ids.__getitem__, chain.from_iterable(words)), np.int32, int(lengths.sum()))
    return Units(units, lengths, np.arange(len(texts)))


def _words(texts: list[str], word_ids: WordIds) -> Units:
    return _by_pattern(_WORD, texts, word_ids)


def _words_and_marks(texts: list[str], word_ids: WordIds) -> Units:
    return _by_pattern(_WORD_OR_MARK, texts, word_ids)


def _split_whitespace(texts: list[str], word_ids: WordIds) -> Units:
    return _by_pattern(_WHITESPACE_WORD, texts, word_ids)


def code_points(segments: list[str]) -> Int32s:
    """Code points of all segments, concatenated."""
    return np.frombuffer("".join(segments).encode("utf-32-le"), np.int32)


def _characters(texts: list[str], word_ids: WordIds) -> Units:
    segments = [_BLANKS.sub(" ", text) for text in texts]
    return Units(code_points(segments), np.fromiter(map(len, segments), np.int64, len(texts)), np.arange(len(texts)))


def _inside_words(texts: list[str], word_ids: WordIds) -> Units:
    words = [text.split() for text in texts]
    segments = [f" {word} " for word in chain.from_iterable(words)]
    num_words = np.fromiter(map(len, words), np.int64, len(words))
    lengths = np.fromiter(map(len, segments), np.int64, len(segments))
    return Units(code_points(segments), lengths, np.repeat(np.arange(len(texts)), num_words))


ANALYZERS: dict[str, Callable[[list[str], WordIds], Units]] = {
    "word": _words,
    "word_punct": _words_and_marks,
    "whitespace": _split_whitespace,
    "char": _characters,
    "char_wb": _inside_words,
}
WORD_ANALYZERS = ("word", "word_punct", "whitespace")


class NgramPositions:
    """Positions where n-grams start in a batch of texts. `grow` extends all n-grams by one unit."""

    def __init__(self, batch: Units) -> None:
        self.units = batch.units
        ends = np.cumsum(batch.lengths)
        # number of units from each position to the end of its segment
        self.remaining = (np.repeat(ends, batch.lengths) - np.arange(len(batch.units))).astype(np.int32)
        self.text = np.repeat(batch.owner, batch.lengths).astype(np.int32)
        self.start = np.arange(len(batch.units), dtype=np.int32)
        self.row = np.zeros(len(batch.units), np.int32)  # row of the n-gram in the level of its length
        self.length = 0

    def grow(self) -> Ints:
        """Extend every n-gram by one unit within its segment and return the keys; the caller sets `row`."""
        self.length += 1
        self.select(self.remaining[self.start] >= self.length)
        return (self.row.astype(np.int64) << UNIT_BITS) + self.units[self.start + (self.length - 1)]

    def select(self, mask: NDArray[np.bool_]) -> None:
        if not mask.all():
            self.start, self.row = self.start[mask], self.row[mask]

    def is_whole_segment(self) -> NDArray[np.bool_]:
        """Mask of the n-grams that are whole segments."""
        starts_segment = np.append(True, self.remaining[:-1] == 1)[: len(self.remaining)]
        ends_segment: NDArray[np.bool_] = self.remaining[self.start] == self.length
        return starts_segment[self.start] & ends_segment


def unique_counts(values: Ints) -> tuple[Ints, Ints]:
    """Unique values, sorted, and their counts."""
    ordered = np.sort(values)
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return ordered[starts], np.diff(starts, append=len(ordered))


def find_rows(keys: Ints, queries: Ints) -> Ints:
    """Row of each query in the ascending `keys`, or -1."""
    if not len(keys):
        return np.full(len(queries), -1)
    # sorted unique queries are the fastest to look up
    unique, inverse = np.unique(queries, return_inverse=True)
    rows = np.searchsorted(keys, unique)
    rows[rows == len(keys)] = 0
    rows[keys[rows] != unique] = -1
    return rows[inverse]
