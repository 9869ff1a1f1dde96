"""Scores of answers to questions, as SQuAD defines them (Rajpurkar et al. 2016, 2018): exact match and F1 of words, in percent.

Answers are compared without capitals, punctuation marks, the articles a, an, the, and with single blanks. Of several right
answers the best counts. Where there is none, only saying none is right.

Shapes: N questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.items import Array, Function, ItemStatistics, Score, Sums
from weft.metrics.metric import Metric, scores

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class QASetup(NamedTuple):
    """How answers were said and are resampled, for the signature."""

    tokenizer: str  # hash
    threshold: float = 0.0
    samples: int = 1000
    seed: int = 0


def normalize(text: str) -> str:
    """An answer as it is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def overlap(predicted: str, gold: str) -> float:
    """F1 of the words of two answers, 0 to 1; if either has none, whether neither has."""
    ours, theirs = normalize(predicted).split(), normalize(gold).split()
    if not ours or not theirs:
        return float(ours == theirs)
    both = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * both / (len(ours) + len(theirs))


def _gold(references: Sequence[str]) -> list[str]:
    """Those that are more than articles and punctuation; no answer, where there is none such."""
    return [text for text in references if normalize(text)] or [""]


def exact(predicted: str, references: Sequence[str]) -> float:
    """1 if it is one of the right answers, else 0."""
    return float(any(normalize(predicted) == normalize(right) for right in _gold(references)))


def best_overlap(predicted: str, references: Sequence[str]) -> float:
    """F1 of the words with the nearest of the right answers, 0 to 1."""
    return max(overlap(predicted, right) for right in _gold(references))


def without_answer(references: Sequence[Sequence[str]]) -> Array:
    """bool (N,): which questions have no right answer."""
    return np.array([_gold(right) == [""] for right in references], bool)


def answer_items(predicted: Sequence[str], references: Sequence[Sequence[str]], keys: Array) -> ItemStatistics:
    """The statistics of each question: examples, exact, overlap, and the same for questions with an answer (answered,
    answered_overlap) and without one (none, none_right), all (N,)."""
    hits = np.array([exact(one, right) for one, right in zip(predicted, references, strict=True)], np.float64)
    shared = np.array([best_overlap(one, right) for one, right in zip(predicted, references, strict=True)], np.float64)
    some = (~without_answer(references)).astype(np.float64)
    statistics = {
        "examples": np.ones(len(some)),
        "exact": hits,
        "overlap": shared,
        "answered": some,
        "answered_overlap": some * shared,
        "none": 1 - some,
        "none_right": (1 - some) * hits,
    }
    return ItemStatistics(keys, statistics, list(predicted))


def best_threshold(margins: Array, shared: Array, none: Array) -> float:
    """What an answer's margin over none must pass to be said, so that the sum of F1 is highest: margins (N,), the F1 of each
    answer if it is said (N,), and 1 where none is right (N,). Infinite where all questions have an answer, or none has."""
    if not none.any() or none.all():
        return -np.inf if not none.any() else np.inf
    order = np.argsort(-margins, kind="stable")
    ordered = margins[order]
    # the F1 if the first k are said, k from 0 to N
    gained = np.concatenate([[0.0], np.cumsum(shared[order])]) + np.concatenate([np.cumsum(none[order][::-1])[::-1], [0.0]])
    edges = np.concatenate([[ordered[0] + 2], ordered, [ordered[-1] - 2]])
    between = (edges[:-1] + edges[1:]) / 2
    apart = edges[:-1] > edges[1:]  # equal margins are said together
    best = np.flatnonzero(apart & (gained >= gained[apart].max() - 1e-9))
    return float(between[best[np.argmin(np.abs(between[best]))]])  # of equal ones that which changes least


def _ratio(part: str, whole: str) -> Function:
    def score(totals: Sums) -> Array:
        whole_of = totals[whole]
        found: Array = 100 * np.divide(totals[part], whole_of, out=np.full_like(whole_of, np.nan), where=whole_of > 0)
        return found

    return score


ANSWERS = (
    Metric("f1", _ratio("overlap", "examples"), "higher", percent=True),
    Metric("exact_match", _ratio("exact", "examples"), "higher", percent=True),
)
ANSWERS_OR_NONE = (  # where some questions have an answer, and some have none
    *ANSWERS,
    Metric("f1_has_answer", _ratio("answered_overlap", "answered"), "higher", single="f1", percent=True),
    Metric("accuracy_no_answer", _ratio("none_right", "none"), "higher", single="exact_match", percent=True),
)


def answer_metrics(none: Array) -> tuple[Metric, ...]:
    """What is measured of questions, of which `none` (N,) are those without an answer."""
    return ANSWERS_OR_NONE if none.any() and not none.all() else ANSWERS


def signature(setup: QASetup, *, examples: int, none: int) -> str:
    """Every choice behind a score, named."""
    return (
        f"weft:{__version__}|tokenizer:{setup.tokenizer[:8]}|normalized:squad|threshold:{setup.threshold:.4g}|unit:question"
        f"|questions:{examples}|unanswerable:{none}|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )


def answer_scores(items: ItemStatistics, setup: QASetup) -> list[Score]:
    """Every score with its interval."""
    examples = len(items.keys)
    if not examples:
        raise DataError("evaluate", "no questions to evaluate")
    none = items.statistics["none"]
    named = signature(setup, examples=examples, none=int(none.sum()))
    return scores(items, answer_metrics(none), named, samples=setup.samples, seed=setup.seed)
