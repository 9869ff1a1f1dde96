"""Texts in pieces, and the n-grams of words or characters that start at each place of them.

An n-gram is found as in a tree: (row of its first k - 1 units) * 2^32 + last unit is its key on level k. So whole
pieces of text are looked up at once, level by level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.text.reading import check_text

BATCH_CHARS = 1 << 20  # characters looked up at once
UNIT_BITS = 32  # a word's number or a character's code, in a key
_WORD = re.compile(r"\b\w\w+\b")
_SPACE = re.compile(r"\S+")
_BLANKS = re.compile(r"\s\s+")

Ints = NDArray[np.int64]
Small = NDArray[np.int32]
Numbers = Mapping[str, int]


class TermIds(dict[str, int]):
    """Numbers of words, -1 for any other."""

    def __missing__(self, word: str) -> int:
        return -1


def batches(texts: Iterable[str], lowercase: bool) -> Iterator[list[str]]:
    """The texts in lists of about PIECE characters; what no file could hold is refused."""
    batch, size, before = list[str](), 0, 0
    for text in chain(texts, [None]):
        if text is not None:
            batch.append(text.lower() if lowercase else text)
            size += len(text)
        if batch and (text is None or size >= BATCH_CHARS):
            _refuse_surrogates(batch, before)
            yield batch
            before += len(batch)
            batch, size = [], 0


def _refuse_surrogates(batch: list[str], before: int) -> None:
    try:
        "".join(batch).encode()
    except UnicodeEncodeError:
        for at, text in enumerate(batch, before + 1):
            check_text(text.replace("\0", " "), f"text {at}")


class Units(NamedTuple):
    """Texts cut into units: a word's number or a character's code. No n-gram reaches over the end of a segment."""

    units: Small  # (n,); -1 for a word that has no number
    lengths: Ints  # units of each segment
    owner: Ints  # which text each segment is of


def _by_pattern(pattern: re.Pattern[str], texts: list[str], number: Numbers) -> Units:
    found = [pattern.findall(text) for text in texts]
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    units = np.fromiter(map(number.__getitem__, chain.from_iterable(found)), np.int32, int(lengths.sum()))
    return Units(units, lengths, np.arange(len(texts)))


def _words(texts: list[str], number: Numbers) -> Units:
    return _by_pattern(_WORD, texts, number)


def _between_spaces(texts: list[str], number: Numbers) -> Units:
    return _by_pattern(_SPACE, texts, number)


def codes(segments: list[str]) -> Small:
    return np.frombuffer("".join(segments).encode("utf-32-le"), np.int32)


def _characters(texts: list[str], number: Numbers) -> Units:
    blanked = [_BLANKS.sub(" ", text) for text in texts]
    return Units(codes(blanked), np.fromiter(map(len, blanked), np.int64, len(texts)), np.arange(len(texts)))


def _inside_words(texts: list[str], number: Numbers) -> Units:
    found = [text.split() for text in texts]
    words = [f" {word} " for word in chain.from_iterable(found)]
    many = np.fromiter(map(len, found), np.int64, len(found))
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return Units(codes(words), lengths, np.repeat(np.arange(len(texts)), many))


ANALYZERS: dict[str, Callable[[list[str], Numbers], Units]] = {
    "word": _words,
    "whitespace": _between_spaces,
    "char": _characters,
    "char_wb": _inside_words,
}
WORD_ANALYZERS = ("word", "whitespace")


class NgramPositions:
    """Where n-grams start in a piece of text; they grow by one unit at a time."""

    def __init__(self, cut: Units) -> None:
        self.units = cut.units
        ends = np.cumsum(cut.lengths)
        # units from here to the end of the segment, this one included
        self.left = (np.repeat(ends, cut.lengths) - np.arange(len(cut.units))).astype(np.int32)
        self.text = np.repeat(cut.owner, cut.lengths).astype(np.int32)
        self.at = np.arange(len(cut.units), dtype=np.int32)
        self.row = np.zeros(len(cut.units), np.int32)  # in the level below
        self.length = 0

    def grow(self) -> Ints:
        """The key of every n-gram that is one unit longer and still inside its segment; `row` is to be set."""
        self.length += 1
        self.keep(self.left[self.at] >= self.length)
        return (self.row.astype(np.int64) << UNIT_BITS) + self.units[self.at + (self.length - 1)]

    def keep(self, mask: NDArray[np.bool_]) -> None:
        if not mask.all():
            self.at, self.row = self.at[mask], self.row[mask]

    def whole(self) -> NDArray[np.bool_]:
        """Which n-grams are whole segments."""
        first = np.append(True, self.left[:-1] == 1)[: len(self.left)]
        ends: NDArray[np.bool_] = self.left[self.at] == self.length
        return first[self.at] & ends


def unique_counts(numbers: Ints) -> tuple[Ints, Ints]:
    """The different numbers, sorted, and how often each occurs."""
    ranked = np.sort(numbers)
    first = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])[: len(ranked)])
    return ranked[first], np.diff(first, append=len(ranked))


def find_rows(keys: Ints, wanted: Ints) -> Ints:
    """Row of each wanted key in the ascending keys, or -1; each is looked up once and in order, which is the quickest."""
    if not len(keys):
        return np.full(len(wanted), -1)
    different, inverse = np.unique(wanted, return_inverse=True)
    at = np.searchsorted(keys, different)
    at[at == len(keys)] = 0
    at[keys[at] != different] = -1
    return at[inverse]
