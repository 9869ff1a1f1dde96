"""Question-answering metrics: comparison with SQuAD's evaluation script, and no-answer thresholds by brute force."""

from __future__ import annotations

import collections
import random
import re
import string

import numpy as np
import pytest

from weft.errors import DataError
from weft.metrics.items import ItemStatistics, join
from weft.metrics.metric import values
from weft.metrics.qa import (
    ANSWERS_OR_NONE,
    QASetup,
    answer_items,
    answer_metrics,
    answer_scores,
    best_overlap,
    best_threshold,
    exact,
    normalize,
    overlap,
)

# ---- the evaluation script of SQuAD 2.0, step by step as it is written there


def official_normalize(s):
    def remove_articles(text):
        return re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(s.lower())))


def official_f1(a_gold, a_pred):
    gold_toks = official_normalize(a_gold).split() if a_gold else []
    pred_toks = official_normalize(a_pred).split() if a_pred else []
    num_same = sum((collections.Counter(gold_toks) & collections.Counter(pred_toks)).values())
    if len(gold_toks) == 0 or len(pred_toks) == 0:
        return int(gold_toks == pred_toks)
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(pred_toks)
    recall = 1.0 * num_same / len(gold_toks)
    return (2 * precision * recall) / (precision + recall)


def official_raw(references, answers):
    golds = [text for text in references if official_normalize(text)] or [""]
    hit = max(int(official_normalize(gold) == official_normalize(answers)) for gold in golds)
    return hit, max(official_f1(gold, answers) for gold in golds)


WORDS = ["the", "The", "a", "an", "cat", "Cat's", "cats", "of", "1,000", "U.S.", "é", "theory", "-", "…", "\u00a0", "another"]


def answers(seed: int, count: int) -> list[tuple[list[str], str]]:
    chance = random.Random(seed)

    def one() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(0, 4)))

    return [([one() for _ in range(chance.randint(0, 3))], one()) for _ in range(count)]


def test_scores_match_the_squad_script():
    for references, answer in answers(0, 3000):
        hit, shared = official_raw(references, answer)
        assert exact(answer, references) == hit
        assert best_overlap(answer, references) == pytest.approx(shared, abs=1e-12)
        assert normalize(answer) == official_normalize(answer)


@pytest.mark.parametrize(
    ("answer", "gold", "shared"),
    [
        ("Ada Lovelace", "ada lovelace", 1.0),
        ("the cat", "cat", 1.0),
        ("Ada King Lovelace", "Ada Lovelace", 0.8),
        ("cat cat", "cat", 2 / 3),
        ("dog", "cat", 0.0),
        ("", "", 1.0),
        ("", "cat", 0.0),
        ("the", "a.", 1.0),
    ],
)
def test_overlaps_by_hand(answer, gold, shared):
    assert overlap(answer, gold) == pytest.approx(shared)


# ---- scores


def some_items(seed: int = 1, count: int = 60) -> ItemStatistics:
    rows = answers(seed, count)
    return answer_items([answer for _, answer in rows], [gold for gold, _ in rows], np.arange(count))


def test_scores_are_means_over_questions_with_and_without_an_answer():
    items = answer_items(["ada", "", "ben", ""], [["Ada"], ["Ben"], [], []], np.arange(4))
    assert values(items, answer_metrics(items.statistics["no_answer"])) == {
        "f1": 50.0,
        "exact_match": 50.0,
        "f1_has_answer": 50.0,
        "accuracy_no_answer": 50.0,
    }
    alone = answer_items(["ada", "ada king"], [["Ada"], ["Ada"]], np.arange(2))
    assert values(alone, answer_metrics(alone.statistics["no_answer"])) == {"f1": pytest.approx(500 / 6), "exact_match": 50.0}
    assert items.outputs == ["ada", "", "ben", ""]


def test_statistics_add_up_over_any_batches():
    rows = answers(2, 40)
    full = answer_items([answer for _, answer in rows], [gold for gold, _ in rows], np.arange(40))
    parts = [
        answer_items([answer for _, answer in rows[index::3]], [gold for gold, _ in rows[index::3]], np.arange(40)[index::3])
        for index in (2, 0, 1)
    ]
    joined = join(parts)
    assert joined.outputs == full.outputs
    for name, statistic in full.statistics.items():
        np.testing.assert_array_equal(joined.statistics[name], statistic)


def test_intervals_contain_the_score_and_signature_names_every_choice():
    scores = answer_scores(some_items(), QASetup("0123456789abcdef", -0.25))
    assert [score.name for score in scores] == [metric.name for metric in ANSWERS_OR_NONE]
    assert all(score.low is not None and score.low <= score.value <= score.high for score in scores)
    none = int(some_items().statistics["no_answer"].sum())
    assert re.fullmatch(
        r"weft:\d+\.\d+\.\d+\|tokenizer:01234567\|normalized:squad\|threshold:-0\.25\|unit:question\|questions:60"
        rf"\|unanswerable:{none}\|resamples:1000\|seed:0\|interval:95%",
        scores[0].signature,
    )
    (one,) = {(score.low, score.high) for score in answer_scores(some_items(count=1), QASetup("x"))}
    assert one == (None, None)


def test_empty_data_is_rejected():
    with pytest.raises(DataError) as caught:
        answer_scores(answer_items([], [], np.arange(0)), QASetup("x"))
    assert str(caught.value) == "evaluate: no questions to evaluate"


# ---- the threshold


@pytest.mark.parametrize("seed", range(8))
def test_best_threshold_is_optimal(seed):
    rng = np.random.default_rng(seed)
    margins = rng.normal(size=30).round(1)  # some are equal
    none = (rng.random(30) < 0.4).astype(float)
    shared = np.where(none > 0, 0.0, rng.random(30).round(1))

    def total(threshold: float) -> float:
        return float(np.where(margins > threshold, shared, none).sum())

    actual = best_threshold(margins, shared, none)
    every = [-np.inf, np.inf, *(margins - 0.05), *(margins + 0.05)]
    assert total(actual) == pytest.approx(max(map(total, every)))


def test_threshold_ties_and_data_of_only_one_type():
    margins, none = np.array([4.0, 2.0, -1.0]), np.array([0.0, 0.0, 1.0])
    assert best_threshold(margins, 1 - none, none) == 0.5
    assert best_threshold(margins, np.array([1.0, 0.0, 0.0]), none) == 0.5  # the second is wrong either way
    assert best_threshold(margins, np.ones(3), np.zeros(3)) == -np.inf
    assert best_threshold(margins, np.zeros(3), np.ones(3)) == np.inf
