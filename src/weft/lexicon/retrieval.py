"""Finds translations: the nearest neighbors of mapped words, by cosine or by CSLS.

CSLS (Conneau et al. 2018) lowers the similarity of words in dense regions, which are neighbors of everything (hubs):

    csls(x, y) = 2 cos(x, y) - r(x) - r(y)

where r is the mean cosine of a word with its k nearest words of the other language.

Shapes: S source words, T target words, D dimensions. All vectors have unit length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.vectors.rows import Floats
from weft.vectors.word_vectors import top

RETRIEVALS = ("csls", "nearest")
CSLS_NEIGHBORS = 10
BATCH_WORDS = 1024


def _batches(rows: int) -> Iterator[slice]:
    return (slice(start, start + BATCH_WORDS) for start in range(0, rows, BATCH_WORDS))


def density(queries: Floats, others: Floats, neighbors: int = CSLS_NEIGHBORS) -> Floats:
    """(S,): the mean cosine of each query (S, D) with its nearest rows of `others` (T, D)."""
    count, means = min(neighbors, len(others)), np.empty(len(queries), np.float32)
    for rows in _batches(len(queries)):
        cosines = queries[rows] @ others.T
        means[rows] = np.partition(cosines, -count, axis=1)[:, -count:].mean(1)
    return means


class Retrieval:
    """Similarity of source words with all target words, by cosine or CSLS."""

    def __init__(self, source: Floats, target: Floats, *, method: str = "csls") -> None:
        self.source, self.target = source, target
        is_csls = method == "csls"
        self.source_density = density(source, target) if is_csls else np.zeros(len(source), np.float32)
        self.target_density = density(target, source) if is_csls else np.zeros(len(target), np.float32)
        self.factor = 2.0 if is_csls else 1.0

    def scores(self, rows: NDArray[np.int64]) -> Floats:
        """(n, T): the similarities of some source words."""
        cosines = self.source[rows] @ self.target.T
        return np.asarray(self.factor * cosines - self.source_density[rows, None] - self.target_density, np.float32)

    def best(self, rows: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], Floats]:
        """(n, count): the most similar target words of some source words, best first, and their similarities."""
        found, values = [np.zeros((0, count), np.int64)], [np.zeros((0, count), np.float32)]
        for batch in _batches(len(rows)):
            scores = self.scores(rows[batch])
            found.append(top(scores, count))
            values.append(np.take_along_axis(scores, found[-1], 1))
        return np.concatenate(found), np.concatenate(values)

    def mutual(self, limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs of the first `limit` source and target words that are each other's best translation."""
        source, target = np.arange(min(limit, len(self.source))), np.arange(min(limit, len(self.target)))
        forward = np.empty(len(source), np.int64)
        best, backward = np.full(len(target), -np.inf, np.float32), np.zeros(len(target), np.int64)
        for batch in _batches(len(source)):
            scores = self.scores(source[batch])[:, : len(target)]
            forward[batch] = scores.argmax(1)
            is_better = scores.max(0) > best
            best = np.where(is_better, scores.max(0), best)
            backward = np.where(is_better, scores.argmax(0) + batch.start, backward)
        is_mutual = backward[forward] == source
        return source[is_mutual], forward[is_mutual]
