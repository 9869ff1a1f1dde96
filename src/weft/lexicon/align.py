"""Alignment of two sets of word vectors: a mapping from a dictionary, its refinement, and a lexicon.

Refinement (Conneau et al. 2018; Artetxe et al. 2018) repeats two steps: words that are each other's best translation become a
new dictionary, together with the given one, and a new mapping is learned from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from weft.config import Config
from weft.errors import DataError, UsageError, unknown_name
from weft.lexicon.dictionary import CoveredPairs, identical_pairs
from weft.lexicon.mapping import METHODS, Matrix, apply_mapping, fit_mapping, normalize
from weft.lexicon.retrieval import RETRIEVALS, Retrieval
from weft.vectors.rows import Floats
from weft.vectors.word_vectors import WordVectors

Progress = Callable[[int, int], None]


class AlignOptions(Config):
    """How to align, and how to find translations."""

    method: str = "procrustes"
    retrieval: str = "csls"
    refine: int | None = Field(None, ge=0)  # repetitions; None: 1 with a dictionary, 5 without
    max_refine_words: int = 20_000  # the most frequent words of each language, from which refinement takes pairs


class Alignment(NamedTuple):
    """A mapping with the normalized vectors of both languages."""

    mapping: Matrix  # (D, D)
    source: Floats  # (S, D): mapped
    target: Floats  # (T, D)
    pairs: int  # of the dictionary that the mapping was learned from, after the last refinement

    def retrieval(self, method: str) -> Retrieval:
        return Retrieval(self.source, self.target, method=method)


def check_options(options: AlignOptions) -> None:
    if options.method not in METHODS:
        raise UsageError("method", *unknown_name("method", options.method, METHODS))
    if options.retrieval not in RETRIEVALS:
        raise UsageError("retrieval", *unknown_name("retrieval", options.retrieval, RETRIEVALS))


def align(
    source: WordVectors,
    target: WordVectors,
    pairs: CoveredPairs | None,
    options: AlignOptions,
    *,
    progress: Progress | None = None,
) -> Alignment:
    """Learn a mapping from pairs of rows; None: from words that are spelled alike in both languages (Artetxe et al. 2017),
    which refinement replaces by what it finds."""
    check_options(options)
    if source.size != target.size:
        problem = f"has {target.size} dimensions, but {source.name} has {source.size}"
        raise DataError(target.name, problem, "train both with the same vector_size")
    x, y = normalize(source.dense()), normalize(target.dense())
    used = identical_pairs(source, target) if pairs is None else pairs
    given = rows = (used.source, used.target)
    refine = options.refine if options.refine is not None else 5 if pairs is None else 1
    mapping = fit_mapping(x[rows[0]], y[rows[1]], options.method)
    for done in range(refine):
        found = Retrieval(apply_mapping(x, mapping), y, method=options.retrieval).mutual(options.max_refine_words)
        rows = found if pairs is None else _joined(given, found)
        mapping = fit_mapping(x[rows[0]], y[rows[1]], options.method)
        if progress is not None:
            progress(done + 1, refine)
    return Alignment(mapping, apply_mapping(x, mapping), y, len(rows[0]))


Rows = tuple[NDArray[np.int64], NDArray[np.int64]]


def _joined(given: Rows, found: Rows) -> Rows:
    """Given pairs, and those found for words that have none."""
    is_new = ~np.isin(found[0], given[0]) & ~np.isin(found[1], given[1])
    return np.concatenate([given[0], found[0][is_new]]), np.concatenate([given[1], found[1][is_new]])
