"""Cache of tokenized words: every distinct word is tokenized once, and a text costs one lookup per word.

The result is exact, because no pre-token of `pipelines` contains a single space except at its start. Texts with other or
repeated whitespace are tokenized as a whole.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from itertools import chain

import numpy as np

# other or repeated whitespace, which is a pre-token of some types; NUL is used as a mark below
_OTHER_WHITESPACE = re.compile(r"  |[^\S \n]|\0")
_FIRST = "\0"  # marks the first word of a text, which has no space before it
# limits of the cache; when it is full, it is cleared
MAX_WORDS = 1 << 19
MAX_CHARS = 1 << 24


class WordCache:
    """Token IDs of all words so far; `encode(texts)` tokenizes new words."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]]) -> None:
        self._encode = encode
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._row: dict[str, int] = {}
        self._characters = 0
        self._ids = np.zeros(0, dtype=np.int64)
        self._start = np.zeros(1, dtype=np.int64)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token IDs of all texts, concatenated, (T,), and number of tokens of each text, (B,)."""
        if not texts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        words, counts = _split(texts)
        with self._lock:
            self._add(words)
            rows = np.fromiter(map(self._row.__getitem__, words), np.int64, len(words))
            cached_ids, start = self._ids, self._start
        lengths = start[rows + 1] - start[rows]
        edges = np.concatenate([[0], np.cumsum(lengths)])
        ids = cached_ids[np.repeat(start[rows] - edges[:-1], lengths) + np.arange(edges[-1])]
        return ids, np.diff(edges[np.cumsum(counts)], prepend=0)

    def _add(self, words: list[str]) -> None:
        distinct = set(words)
        new = distinct.difference(self._row)
        if len(new) + len(self._row) > MAX_WORDS or self._characters > MAX_CHARS:
            self._clear()
            new = distinct
        if not new:
            return
        new_words = list(new)
        ids = self._encode([word[1:] if word.startswith(_FIRST) else " " + word for word in new_words])
        rows = len(self._row)
        self._row.update(zip(new_words, range(rows, rows + len(new_words)), strict=True))
        self._characters += sum(map(len, new_words))
        ends = np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids))) + self._start[rows]
        flat = np.fromiter(chain.from_iterable(ids), np.int64, int(ends[-1] - self._start[rows]))
        self._ids = _put(self._ids, int(self._start[rows]), flat)
        self._start = _put(self._start, rows + 1, ends)


def _put(array: np.ndarray, start: int, new: np.ndarray) -> np.ndarray:
    """Write `new` to `array` from `start`, and return the array, a larger copy if `new` does not fit."""
    if start + len(new) > len(array):
        array = np.concatenate([array[:start], np.zeros(start + 2 * len(new), dtype=array.dtype)])
    array[start : start + len(new)] = new
    return array


def _split(texts: list[str]) -> tuple[list[str], np.ndarray]:
    """Words of all texts, the first of each text with the mark _FIRST, and the number of words of each text."""
    joined = _FIRST + f" {_FIRST}".join(texts)
    if not _OTHER_WHITESPACE.search("".join(texts)):
        counts = np.fromiter((text.count(" ") for text in texts), np.int64, len(texts))
        return joined.split(" "), counts + 1
    words = [[_FIRST + text] if _OTHER_WHITESPACE.search(text) else (_FIRST + text).split(" ") for text in texts]
    return list(chain.from_iterable(words)), np.fromiter(map(len, words), np.int64, len(words))
