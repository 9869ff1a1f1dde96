"""Counts the units of metrics in texts: characters, UTF-8 bytes and words.

Words are separated by whitespace. A newline counts as a character, a byte and a word, because a model predicts it.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

UNITS = ("characters", "bytes", "words")
# no character beyond U+3000 is whitespace
_IS_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])


def count_units(texts: list[str]) -> np.ndarray:
    """int64 (N, 3): characters, bytes and words of N consecutive texts. A word that continues in the next text counts where it
    starts."""
    joined = "".join(texts)
    ends = np.fromiter(accumulate(map(len, texts)), np.int64, len(texts))
    codes = np.frombuffer(joined.encode("utf-32-le"), dtype=np.uint32)
    is_space = _IS_SPACE[np.minimum(codes, len(_IS_SPACE) - 1)]
    starts_word = ~is_space
    starts_word[1:] &= is_space[:-1]
    starts_word |= codes == ord("\n")
    num_bytes = ends if joined.isascii() else ends + _cumulative(ends, _extra_bytes(codes))
    return np.diff(np.stack([ends, num_bytes, _cumulative(ends, starts_word)], axis=1), axis=0, prepend=0)


def _extra_bytes(codes: np.ndarray) -> np.ndarray:
    """UTF-8 bytes of each character beyond the first."""
    return (codes >= 0x80).astype(np.int8) + (codes >= 0x800) + (codes >= 0x10000)


def _cumulative(ends: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64 (E,): sum of `counts` before each of `ends` (E,)."""
    return np.asarray(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])[ends])
