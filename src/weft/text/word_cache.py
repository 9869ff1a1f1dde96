"""Every distinct word is tokenised once: a text then costs one look-up a word.

This is exact because no pattern in `pipelines` lets a pre-token reach over a single space into the word after it: the
space starts a pre-token, or lies outside all of them. Texts with other white space, or with more of it between words,
go through whole.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from itertools import chain

import numpy as np

# runs of mixed white space are pre-tokens for some kinds
_ODD = re.compile(r"  |[^\S \n]|\0")
# stands before the first word of a text, which has no space before it
_FIRST = "\0"
# what is remembered before all is forgotten
MAX_WORDS = 1 << 19
MAX_CHARS = 1 << 24


class WordCache:
    """The ids of every word met so far, by `encode(texts) -> ids of each`."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]]) -> None:
        self._encode = encode
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._row: dict[str, int] = {}
        self._characters = 0
        self._ids = np.zeros(0, dtype=np.int64)
        self._start = np.zeros(1, dtype=np.int64)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts in one array, and how many each has; equal to encoding each text whole."""
        if not texts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        words, counts = _split(texts)
        with self._lock:
            self._learn(words)
            rows = np.fromiter(map(self._row.__getitem__, words), np.int64, len(words))
            known, start = self._ids, self._start
        lengths = start[rows + 1] - start[rows]
        edges = np.concatenate([[0], np.cumsum(lengths)])
        ids = known[np.repeat(start[rows] - edges[:-1], lengths) + np.arange(edges[-1])]
        return ids, np.diff(edges[np.cumsum(counts)], prepend=0)

    def _learn(self, words: list[str]) -> None:
        found = set(words)
        new = found.difference(self._row)
        if len(new) + len(self._row) > MAX_WORDS or self._characters > MAX_CHARS:
            self._forget()
            new = found
        if not new:
            return
        overwrite = list(new)
        ids = self._encode([word[1:] if word.startswith(_FIRST) else " " + word for word in overwrite])
        rows = len(self._row)
        self._row.update(zip(overwrite, range(rows, rows + len(overwrite)), strict=True))
        self._characters += sum(map(len, overwrite))
        ends = np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids))) + self._start[rows]
        flat = np.fromiter(chain.from_iterable(ids), np.int64, int(ends[-1] - self._start[rows]))
        self._ids = _put(self._ids, int(self._start[rows]), flat)
        self._start = _put(self._start, rows + 1, ends)


def _put(array: np.ndarray, at: int, new: np.ndarray) -> np.ndarray:
    """`array` with `new` written from `at` on; one twice as large where it has no room for it."""
    if at + len(new) > len(array):
        array = np.concatenate([array[:at], np.zeros(at + 2 * len(new), dtype=array.dtype)])
    array[at : at + len(new)] = new
    return array


def _split(texts: list[str]) -> tuple[list[str], np.ndarray]:
    """The words of all texts, the first of each marked, and how many each has."""
    whole = _FIRST + f" {_FIRST}".join(texts)
    if not _ODD.search("".join(texts)):
        counts = np.fromiter((text.count(" ") for text in texts), np.int64, len(texts))
        return whole.split(" "), counts + 1
    parts = [[_FIRST + text] if _ODD.search(text) else (_FIRST + text).split(" ") for text in texts]
    return list(chain.from_iterable(parts)), np.fromiter(map(len, parts), np.int64, len(parts))
