"""Error rates of recognized speech equal those of jiwer."""

from __future__ import annotations

import random

import jiwer
import numpy as np
import pytest

from weft.errors import DataError
from weft.metrics.metric import values
from weft.metrics.speech import KINDS, SPEECH, count_errors, edit_distances, speech_items, speech_scores, validation_values


def random_text(rng: random.Random, *, least: int = 0) -> str:
    words = ["a", "ab", "b", "ba", "ä", "é"]
    return " ".join(rng.choices(words, k=rng.randint(least, 7)))


def test_counts_and_rates_equal_those_of_jiwer():
    rng = random.Random(1)
    references = [random_text(rng, least=1) for _ in range(300)]
    outputs = [random_text(rng) if rng.random() < 0.8 else reference for reference in references]
    assert "" in outputs
    items = speech_items(outputs, [[reference] for reference in references])
    words = jiwer.process_words(references, outputs)
    assert {kind: items.statistics[kind].sum() for kind in KINDS} == {kind: getattr(words, kind) for kind in KINDS}
    rates = values(items, SPEECH)
    assert rates["wer"] == pytest.approx(100 * words.wer, abs=1e-9)
    assert rates["cer"] == pytest.approx(100 * jiwer.cer(references, outputs), abs=1e-9)
    for reference, output in zip(references, outputs, strict=True):
        one = jiwer.process_words(reference, output)
        assert tuple(count_errors(reference.split(), output.split())) == tuple(getattr(one, kind) for kind in KINDS)


def test_worked_values():
    """One substitution, one deletion and one insertion among six words."""
    items = speech_items(["the cat sat in a hat", "yes", ""], [["the cat sat in the hat"], ["oh yes"], ["no"]])
    assert [items.statistics[kind].tolist() for kind in KINDS] == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    rates = values(items, SPEECH)
    assert rates["wer"] == pytest.approx(100 * 3 / 9) and rates["exact_match"] == 0
    assert edit_distances("ab", "b")[-1][-1] == 1


def test_whitespace_separates_words_and_is_one_character():
    items = speech_items(["  a \t b\u3000c\n"], [["a  b c"]])
    assert values(items, SPEECH) == {
        "wer": 0,
        "cer": 0,
        "substitutions": 0,
        "deletions": 0,
        "insertions": 0,
        "exact_match": 100,
    }
    assert items.statistics["characters"].tolist() == [5]


def test_the_closest_of_several_references_counts():
    items = speech_items(["a b c", "x"], [["a q q q", "a b d"], ["y z", "x"]])
    assert items.statistics["words"].tolist() == [3, 1] and items.statistics["substitutions"].tolist() == [1, 0]
    assert items.statistics["exact"].tolist() == [0, 1]


def test_references_without_words_have_no_rate():
    """An insertion is an error, but there is no word to divide by."""
    assert "wer" not in validation_values(["a"], [[""]])
    assert validation_values(["a", "b"], [[""], ["b"]])["wer"] == 100


def test_scores_have_intervals_and_signatures():
    rng = random.Random(2)
    references = [random_text(rng, least=1) for _ in range(50)]
    items = speech_items([random_text(rng) for _ in references], [[reference] for reference in references])
    scores = {score.name: score for score in speech_scores(items, search="beam:5", samples=200)}
    assert set(scores) == {metric.name for metric in SPEECH}
    for score in scores.values():
        assert score.low <= score.value <= score.high
        assert "search:beam:5" in score.signature and "lines:50" in score.signature
    assert scores["wer"].low < scores["wer"].value < scores["wer"].high
    assert "tok:char" in scores["cer"].signature and "tok:space" in scores["wer"].signature
    with pytest.raises(DataError, match="no utterances to evaluate"):
        speech_scores(speech_items([], []), search="greedy")


def test_long_texts_are_aligned_quickly():
    """The common beginning and end are not aligned."""
    words = [str(number) for number in range(20_000)]
    changed = [*words[:10_000], "x", *words[10_001:]]
    assert tuple(count_errors(words, changed)) == (1, 0, 0)
    assert np.isclose(values(speech_items([" ".join(changed[:500])], [[" ".join(words[:500])]]), SPEECH)["wer"], 0)
