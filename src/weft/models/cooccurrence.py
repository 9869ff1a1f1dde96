"""Counts of pairs of words within a window.

Shapes: V words, M pairs that occur.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SEGMENT_WORDS = 1 << 20  # words whose pairs are sorted at a time
Counts = tuple[NDArray[np.int64], NDArray[np.float64]]  # keys of pairs, and their counts


class Cooccurrences(NamedTuple):
    """A symmetric sparse matrix of weighted counts, sorted by word, then by context word."""

    words: NDArray[np.int64]  # (M,)
    contexts: NDArray[np.int64]  # (M,)
    counts: NDArray[np.float64]  # (M,)
    num_words: int


def window_weight(name: str, distance: int, window: int) -> float:
    """The weight of a context word at a distance from 1 to `window`."""
    return {"dynamic": (window - distance + 1) / window, "harmonic": 1 / distance, "flat": 1.0}[name]


def count_pairs(
    words: NDArray[np.integer],
    lines: NDArray[np.integer],
    num_words: int,
    *,
    window: int,
    weights: str,
    progress: Callable[[int, int], None] | None = None,
) -> Cooccurrences:
    """Count the pairs of all words (N,) at most `window` apart in the same line; `lines` (N,) has line numbers."""
    keys: NDArray[np.int64] = np.zeros(0, np.int64)
    counts: NDArray[np.float64] = np.zeros(0)
    for start in range(0, len(words), SEGMENT_WORDS):
        stop = min(start + SEGMENT_WORDS, len(words))
        parts: list[Counts] = [(keys, counts)]
        for distance in range(1, window + 1):
            end = max(start + distance, min(stop + distance, len(words)))  # pairs that start in this segment
            first, second = (np.asarray(words[start + shift : end - distance + shift], np.int64) for shift in (0, distance))
            same = np.asarray(lines[start : end - distance]) == np.asarray(lines[start + distance : end])
            first, second = first[same], second[same]
            pair = np.minimum(first, second) * num_words + np.maximum(first, second)
            unique, number = np.unique(pair, return_counts=True)
            parts.append((unique, number.astype(np.float64) * window_weight(weights, distance, window)))
        keys, counts = _merge(parts)
        if progress is not None:
            progress(stop, len(words))
    low, high = np.divmod(keys, num_words)
    other = low != high  # a pair of two words counts for both, and a word next to itself twice
    both = (keys, counts * np.where(other, 1.0, 2.0)), ((high * num_words + low)[other], counts[other])
    keys, counts = _merge(list(both))
    rows, columns = np.divmod(keys, num_words)
    return Cooccurrences(rows, columns, counts, num_words)


def _merge(parts: list[Counts]) -> Counts:
    """Sorted keys with the sums of their counts."""
    keys = np.concatenate([key for key, _ in parts])
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = np.bincount(inverse, np.concatenate([count for _, count in parts]), len(unique))
    return unique, sums.astype(np.float64)
