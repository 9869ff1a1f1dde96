"""Scores of word vectors on suites of similarities and analogies.

Shapes: N items, S suites of similarities, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft import __version__
from weft.errors import DataError
from weft.metrics.items import ItemStatistics, Score
from weft.metrics.metric import scores, values
from weft.metrics.word_vectors import MOMENTS, WORD_VECTORS, rank_moments, suite_correlations
from weft.tasks.spec import ProgressCallback
from weft.tasks.word_vectors.suites import SuiteItem
from weft.text.table_layout import columns
from weft.vectors.word_vectors import WordVectors, unit_rows

BATCH_QUESTIONS = 512
NO_VECTOR = "(no vector)"


class SuiteScore(NamedTuple):
    """The result of one suite."""

    path: Path
    value: float  # Spearman's correlation, or the fraction of analogies that are solved; NaN without covered items
    is_similarity: bool
    covered: int
    total: int


class SuiteScores(NamedTuple):
    """Statistics of all items, and the result of each suite."""

    items: ItemStatistics
    suites: list[SuiteScore]


def _cosines(vectors: WordVectors, items: Sequence[SuiteItem]) -> NDArray[np.float64]:
    """(N,): the cosine of the two words of each pair; NaN if one has no vector."""
    cosines = np.full(len(items), np.nan)
    for index, item in enumerate(items):
        pair = [vectors.vector(word) for word in item.words]
        if pair[0] is not None and pair[1] is not None:
            cosines[index] = float(unit_rows(pair[0]) @ unit_rows(pair[1]))
    return cosines


def _solve(vectors: WordVectors, items: Sequence[SuiteItem], progress: ProgressCallback | None) -> list[str]:
    """The word nearest to b - a + c, other than the three, for each analogy; NO_VECTOR if one of its four words has none."""
    rows = [[vectors.find(word) for word in item.words] for item in items]
    known = np.array([index for index, row in enumerate(rows) if None not in row], np.int64)
    answers = [NO_VECTOR] * len(items)
    for start in range(0, len(known), BATCH_QUESTIONS):
        members = known[start : start + BATCH_QUESTIONS]
        ids = np.array([rows[index] for index in members], np.int64)  # (n, 4)
        a, b, c = (unit_rows(vectors.rows.take(ids[:, column])) for column in range(3))
        similarity = vectors.similarities(b - a + c)
        np.put_along_axis(similarity, ids[:, :3], -np.inf, 1)
        for index, best in zip(members.tolist(), similarity.argmax(1).tolist(), strict=True):
            answers[index] = vectors.words[best]
        if progress is not None:
            progress(int(members[-1]) + 1, len(items))
    return answers


def score_suites(vectors: WordVectors, items: Sequence[SuiteItem], progress: ProgressCallback | None = None) -> SuiteScores:
    """Score all items; those with words that have no vector count for the coverage alone."""
    groups = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    kinds = [group[0].similarity is not None for group in groups]
    num_similar = sum(kinds)
    statistics: dict[str, list[NDArray[np.float64]]] = {"items": [], "covered": []}
    outputs, suites = list[str](), list[SuiteScore]()
    for group, is_similarity in zip(groups, kinds, strict=True):
        size = len(group)
        moments, rank_error, correct = np.zeros((size, max(1, num_similar) * MOMENTS)), np.zeros(size), np.zeros(size)
        if is_similarity:
            cosines, column = _cosines(vectors, group), sum(suite.is_similarity for suite in suites)
            covered = ~np.isnan(cosines)
            gold = np.array([item.similarity for item in group], np.float64)
            own = rank_moments(gold[covered], cosines[covered])
            moments[covered, column * MOMENTS : (column + 1) * MOMENTS] = own
            rank_error[covered] = np.abs(own[:, 1] - own[:, 2]) / max(1, len(own))
            outputs += [NO_VECTOR if np.isnan(cosine) else f"{cosine:.3f}" for cosine in cosines.tolist()]
            value = float(suite_correlations(own.sum(0, keepdims=True))[0, 0]) if len(own) else float("nan")
        else:
            answers = _solve(vectors, group, progress)
            covered = np.array([answer != NO_VECTOR for answer in answers])
            correct = np.array([_same(vectors, answer, item.words[3]) for answer, item in zip(answers, group, strict=True)])
            outputs += answers
            value = float(correct.sum() / covered.sum()) if covered.any() else float("nan")
        ones = np.full(size, float(is_similarity))
        parts = {
            "items": np.ones(size), "covered": covered.astype(float), "moments": moments, "rank_error": rank_error,
            "pairs": covered * ones, "correct": correct.astype(float), "questions": covered * (1 - ones),
        }  # fmt: skip
        for name, part in parts.items():
            statistics.setdefault(name, []).append(part)
        suites.append(SuiteScore(group[0].path, value, is_similarity, int(covered.sum()), size))
    joined = {name: np.concatenate(parts) for name, parts in statistics.items()}
    absent = {"moments", "rank_error", "pairs"} if not num_similar else set()
    absent |= {"correct", "questions"} if num_similar == len(groups) else set()
    kept = {name: part for name, part in joined.items() if name not in absent}
    return SuiteScores(ItemStatistics(np.arange(len(items)), kept, outputs), suites)


def _same(vectors: WordVectors, answer: str, gold: str) -> bool:
    row = vectors.find(gold)
    return row is not None and vectors.words[row] == answer


def check_covered(result: SuiteScores, vectors: WordVectors) -> None:
    """Refuse suites of which no item has vectors: there is nothing to score."""
    if not any(suite.covered for suite in result.suites):
        problem = f"no line has only words with a vector in {vectors.name}"
        raise DataError(result.suites[0].path, problem, "use words of the training text, or [model] max_char_ngram = 6")


def suite_values(result: SuiteScores) -> dict[str, float]:
    """The scores by name."""
    return values(result.items, WORD_VECTORS)


def suite_score_list(result: SuiteScores) -> list[Score]:
    """The scores with intervals."""
    signature = f"suites:{len(result.suites)}|similarity:cosine|analogies:3cosadd|items:covered|weft:{__version__}"
    return scores(result.items, WORD_VECTORS, signature)


def suite_table(suites: Sequence[SuiteScore]) -> str:
    """One line per suite with its score and coverage."""
    rows = [["suite", "score", "metric", "covered"]]
    for suite in suites:
        value = suite.value if suite.is_similarity else 100 * suite.value
        text = "-" if np.isnan(value) else f"{value:.3f}" if suite.is_similarity else f"{value:.1f}"
        share = f"{suite.covered:,} of {suite.total:,} ({suite.covered / suite.total:.0%})"
        rows.append([suite.path.name, text, "spearman" if suite.is_similarity else "accuracy", share])
    return "\n" + columns(rows)
