"""How much text there is, in the units that losses are given per: characters, bytes of UTF-8, words.

A newline is a character, a byte, and an event of its own among the words: words are what white space separates, plus
one for each line end.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

UNITS = ("characters", "bytes", "words")
# no character beyond U+3000 is white space
_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])


def count_units(texts: list[str]) -> np.ndarray:
    """int64 (texts, 3): characters, bytes and words of each; a word cut by the end of a text counts where it starts."""
    whole = "".join(texts)
    ends = np.fromiter(accumulate(map(len, texts)), np.int64, len(texts))
    codes = np.frombuffer(whole.encode("utf-32-le"), dtype=np.uint32)
    space = _SPACE[np.minimum(codes, len(_SPACE) - 1)]
    words = ~space
    words[1:] &= space[:-1]
    words |= codes == ord("\n")
    totals = [ends, ends if whole.isascii() else ends + _cumulative(ends, _more_bytes(codes)), _cumulative(ends, words)]
    return np.diff(np.stack(totals, axis=1), axis=0, prepend=0)


def _more_bytes(codes: np.ndarray) -> np.ndarray:
    """How many bytes beyond the first UTF-8 needs for each character."""
    return (codes >= 0x80).astype(np.int8) + (codes >= 0x800) + (codes >= 0x10000)


def _cumulative(ends: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64 (E,): the sum of `counts` before each of `ends`."""
    return np.asarray(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])[ends])
