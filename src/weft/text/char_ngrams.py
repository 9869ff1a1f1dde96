"""Character n-grams of words, hashed into buckets as in fastText (Bojanowski et al. 2017): a word that training never saw still
has a vector, the mean of those of its n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FNV_OFFSET, FNV_PRIME, MASK = 2166136261, 16777619, 0xFFFFFFFF


def char_ngrams(word: str, min_n: int, max_n: int) -> list[str]:
    """The n-grams of '<word>', with lengths from `min_n` to `max_n`; < or > alone is none."""
    text = f"<{word}>"
    spans = ((start, start + n) for start in range(len(text)) for n in range(min_n, max_n + 1) if start + n <= len(text))
    return [text[start:end] for start, end in spans if end - start > 1 or 0 < start < len(text) - 1]


def fasttext_hash(ngram: str) -> int:
    """FNV-1a over UTF-8 bytes; like fastText, bytes from 128 are negative numbers."""
    value = FNV_OFFSET
    for byte in ngram.encode():
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * FNV_PRIME) & MASK
    return value


class CharNgrams(NamedTuple):
    """Which n-grams a word has, and the number of buckets that they share."""

    min_n: int
    max_n: int
    buckets: int

    def bucket_ids(self, word: str) -> list[int]:
        """The bucket of each n-gram, without repeats: a word such as 'aaaa' has the same n-gram several times."""
        ngrams = dict.fromkeys(char_ngrams(word, self.min_n, self.max_n))
        return [fasttext_hash(ngram) % self.buckets for ngram in ngrams]

    def of_words(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The buckets of all words, concatenated, and offsets (V + 1,) of each word."""
        buckets = [self.bucket_ids(word) for word in words]
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in buckets], dtype=np.int64)])
        return np.array([bucket for ids in buckets for bucket in ids], np.int64), offsets
