"""Question answering metrics of SQuAD (Rajpurkar et al. 2016, 2018): exact match and F1 over words, in percent.

Answers are normalized before they are compared: lowercase, without punctuation and the articles a, an, the, and with single
spaces. If there are several gold answers, the best match counts. If there is none, only the empty answer is correct.

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
    """Details of the evaluation, for the signature."""

    tokenizer: str  # hash
    threshold: float = 0.0
    samples: int = 1000
    seed: int = 0


def normalize(text: str) -> str:
    """Normalize an answer as SQuAD's evaluation script does."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def overlap(predicted: str, gold: str) -> float:
    """F1 over the words of two answers, from 0 to 1. If either is empty, it is 1 if both are, else 0."""
    predicted_words, gold_words = normalize(predicted).split(), normalize(gold).split()
    if not predicted_words or not gold_words:
        return float(predicted_words == gold_words)
    num_common = (Counter(predicted_words) & Counter(gold_words)).total()
    return 2 * num_common / (len(predicted_words) + len(gold_words))


def _gold(references: Sequence[str]) -> list[str]:
    """References that are not empty after normalization; [""], no answer, if there are none."""
    return [text for text in references if normalize(text)] or [""]


def exact(predicted: str, references: Sequence[str]) -> float:
    """1 if the prediction equals a reference, else 0."""
    return float(any(normalize(predicted) == normalize(gold) for gold in _gold(references)))


def best_overlap(predicted: str, references: Sequence[str]) -> float:
    """F1 over words with the closest reference, from 0 to 1."""
    return max(overlap(predicted, gold) for gold in _gold(references))


def without_answer(references: Sequence[Sequence[str]]) -> Array:
    """bool (N,): which questions have no answer."""
    return np.array([_gold(texts) == [""] for texts in references], bool)


def answer_items(predicted: Sequence[str], references: Sequence[Sequence[str]], keys: Array) -> ItemStatistics:
    """Statistics of questions, all (N,): examples, exact, f1; has_answer and has_answer_f1 for questions with an answer;
    no_answer and no_answer_correct for questions without one."""
    pairs = list(zip(predicted, references, strict=True))
    is_exact = np.array([exact(answer, texts) for answer, texts in pairs], np.float64)
    f1 = np.array([best_overlap(answer, texts) for answer, texts in pairs], np.float64)
    no_answer = without_answer(references).astype(np.float64)
    statistics = {
        "examples": np.ones(len(pairs)),
        "exact": is_exact,
        "f1": f1,
        "has_answer": 1 - no_answer,
        "has_answer_f1": (1 - no_answer) * f1,
        "no_answer": no_answer,
        "no_answer_correct": no_answer * is_exact,
    }
    return ItemStatistics(keys, statistics, list(predicted))


def best_threshold(margins: Array, answer_f1: Array, no_answer: Array) -> float:
    """Threshold of the margin that maximizes F1: an answer is predicted if its margin over no answer is higher.

    margins (N,); answer_f1 (N,), F1 if the answer is predicted; no_answer (N,), 1 if the question has no answer, else 0. The
    result is -inf if all questions have an answer, and inf if none has.
    """
    if not no_answer.any():
        return -np.inf
    if no_answer.all():
        return np.inf
    order = np.argsort(-margins, kind="stable")
    margins = margins[order]
    # summed F1 if the k highest margins are answered, for k from 0 to N
    answered_f1 = np.concatenate([[0.0], np.cumsum(answer_f1[order])])
    unanswered_f1 = np.concatenate([np.cumsum(no_answer[order][::-1])[::-1], [0.0]])
    total_f1 = answered_f1 + unanswered_f1
    edges = np.concatenate([[margins[0] + 2], margins, [margins[-1] - 2]])
    thresholds = (edges[:-1] + edges[1:]) / 2
    is_valid = edges[:-1] > edges[1:]  # no threshold separates equal margins
    best = np.flatnonzero(is_valid & (total_f1 >= total_f1[is_valid].max() - 1e-9))
    return float(thresholds[best[np.argmin(np.abs(thresholds[best]))]])  # ties: the threshold closest to 0


def _percentage(part: str, whole: str) -> Function:
    def score(totals: Sums) -> Array:
        count = totals[whole]
        percentage: Array = 100 * np.divide(totals[part], count, out=np.full_like(count, np.nan), where=count > 0)
        return percentage

    return score


ANSWERS = (
    Metric("f1", _percentage("f1", "examples"), "higher", percent=True),
    Metric("exact_match", _percentage("exact", "examples"), "higher", percent=True),
)
ANSWERS_OR_NONE = (  # if only some questions have an answer, as in SQuAD 2.0
    *ANSWERS,
    Metric("f1_has_answer", _percentage("has_answer_f1", "has_answer"), "higher", item_metric="f1", percent=True),
    Metric(
        "accuracy_no_answer", _percentage("no_answer_correct", "no_answer"), "higher", item_metric="exact_match", percent=True
    ),
)


def answer_metrics(no_answer: Array) -> tuple[Metric, ...]:
    """The metrics for questions of which `no_answer` (N,) marks those without an answer."""
    return ANSWERS_OR_NONE if no_answer.any() and not no_answer.all() else ANSWERS


def signature(setup: QASetup, *, examples: int, no_answer: int) -> str:
    """Signature of the scores: everything that they depend on."""
    return (
        f"weft:{__version__}|tokenizer:{setup.tokenizer[:8]}|normalized:squad|threshold:{setup.threshold:.4g}|unit:question"
        f"|questions:{examples}|unanswerable:{no_answer}|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )


def answer_scores(items: ItemStatistics, setup: QASetup) -> list[Score]:
    """All scores with their confidence intervals."""
    examples = len(items.keys)
    if not examples:
        raise DataError("evaluate", "no questions to evaluate")
    no_answer = items.statistics["no_answer"]
    text = signature(setup, examples=examples, no_answer=int(no_answer.sum()))
    return scores(items, answer_metrics(no_answer), text, samples=setup.samples, seed=setup.seed)
