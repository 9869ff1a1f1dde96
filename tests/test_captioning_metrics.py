"""Caption metrics: comparison with sacrebleu and with the formulas of the papers, worked values, and sums over items."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from weft import __version__
from weft.errors import DataError
from weft.metrics.captioning import (
    CAPTIONING,
    CAPTIONING_VALIDATION,
    CaptionSetup,
    caption_items,
    caption_scores,
    caption_setup,
    caption_words,
)
from weft.metrics.items import resample
from weft.metrics.metric import values

WORDS = ["a", "the", "dog", "cat", "sits", "runs", "on", "in", "grass", "snow", "red", "big"]


def corpus(seed: int, *, items: int = 25, max_references: int = 4) -> tuple[list[str], list[list[str]]]:
    """Outputs that share words with their references."""
    rng = random.Random(seed)
    references = [
        [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(rng.randint(1, max_references))] for _ in range(items)
    ]
    outputs = []
    for texts in references:
        words = [word if rng.random() < 0.8 else rng.choice(WORDS) for word in rng.choice(texts).split()]
        outputs.append(" ".join(words[: rng.randint(1, 10)]))
    return outputs, references


def scores_of(outputs, references) -> dict[str, float]:
    return values(caption_items(outputs, references), CAPTIONING)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_bleu_equals_sacrebleu_with_several_references(seed, order):
    outputs, references = corpus(seed)
    metric = BLEU(tokenize="none", smooth_method="none", max_ngram_order=order)
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(4)]
    expected = metric.corpus_score(outputs, streams).score
    assert expected > 5
    assert scores_of(outputs, references)[f"bleu_{order}"] == pytest.approx(expected, rel=1e-9)


def test_bleu_is_zero_without_a_matching_ngram():
    result = scores_of(["a dog sits"], [["the dog sits here"]])
    brevity = math.exp(1 - 4 / 3)
    assert result["bleu_1"] == pytest.approx(100 * 2 / 3 * brevity)
    assert result["bleu_2"] == pytest.approx(100 * math.sqrt(2 / 3 * 1 / 2) * brevity)
    assert result["bleu_3"] == result["bleu_4"] == 0.0


def by_formula(outputs: list[str], references: list[list[str]]) -> tuple[list[float], list[float]]:
    """CIDEr and CIDEr-D of each item as in Vedantam et al. 2015, equations 1 to 5, with loops over the whole vocabulary."""

    def grams(text: str, n: int) -> list[str]:
        words = text.split()
        return [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]

    def g(text: str, n: int, omega: list[str], h_only: bool) -> np.ndarray:
        counts = grams(text, n)
        result = []
        for w in omega:
            idf = math.log(
                len(references) / max(1, sum(min(1, sum(grams(s, n).count(w) for s in item)) for item in references))
            )
            tf = counts.count(w) if h_only else counts.count(w) / max(1, len(counts))
            result.append(tf * idf)
        return np.array(result)

    cider, cider_d = [], []
    for candidate, item in zip(outputs, references, strict=True):
        sums = [0.0, 0.0]
        for n in range(1, 5):
            omega = sorted({w for text in [candidate, *item] for w in grams(text, n)})
            for s in item:
                c, r = g(candidate, n, omega, False), g(s, n, omega, False)
                if np.linalg.norm(c) * np.linalg.norm(r) == 0:
                    continue
                sums[0] += c @ r / (np.linalg.norm(c) * np.linalg.norm(r)) / len(item) / 4
                c, r = g(candidate, n, omega, True), g(s, n, omega, True)
                similarity = np.minimum(c, r) @ r / (np.linalg.norm(c) * np.linalg.norm(r))
                penalty = math.exp(-((len(candidate.split()) - len(s.split())) ** 2) / (2 * 6**2))
                sums[1] += 10 * penalty * similarity / len(item) / 4
        cider.append(sums[0])
        cider_d.append(sums[1])
    return cider, cider_d


@pytest.mark.parametrize("seed", range(3))
def test_cider_equals_the_formula_of_the_paper(seed):
    outputs, references = corpus(seed, items=12)
    items = caption_items(outputs, references)
    cider, cider_d = by_formula(outputs, references)
    np.testing.assert_allclose(items.statistics["cider"], cider, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(items.statistics["cider_d"], cider_d, rtol=1e-9, atol=1e-12)
    assert len(set(cider)) > 6 and np.std(np.array(cider_d) / (10 * np.array(cider) + 1e-9)) > 0.01
    result = values(items, CAPTIONING)
    assert result["cider"] == pytest.approx(np.mean(cider)) and result["cider_d"] == pytest.approx(np.mean(cider_d))


def test_cider_worked_example():
    references = [["a b"], ["c d"]]
    # one word of two: half of the squared norm and a shorter output; no common bigram; no n-grams of 3 and 4 words
    result = caption_items(["a", "c d"], references).statistics
    cosine = 1 / math.sqrt(2)
    np.testing.assert_allclose(result["cider"], [cosine / 4, 2 / 4])
    np.testing.assert_allclose(result["cider_d"], [10 * cosine * math.exp(-1 / 72) / 4, 10 * 2 / 4])


def test_repeated_words_are_clipped_by_cider_d_only():
    references = [["red dog"], ["big cat"]]
    once, often = (caption_items([text, ""], references).statistics for text in ("red", "red red red"))
    assert often["cider"][0] == pytest.approx(once["cider"][0])
    assert often["cider_d"][0] < once["cider_d"][0]


def test_words_of_every_item_and_a_single_item_have_no_weight():
    assert scores_of(["a dog"], [["a dog"]])["cider_d"] == 0.0
    result = caption_items(["a", "a"], [["a dog"], ["a cat"]]).statistics
    assert result["cider"].tolist() == [0.0, 0.0]


def test_perfect_and_empty_outputs():
    _, references = corpus(0)
    texts = [item[0] + " w x y z" for item in references]
    perfect = scores_of(texts, [[text] for text in texts])
    assert perfect == pytest.approx(
        {
            "cider_d": 10,
            "cider": 1,
            "bleu_4": 100,
            "bleu_3": 100,
            "bleu_2": 100,
            "bleu_1": 100,
            "word_f1": 100,
            "exact_match": 100,
            "wer": 0,
        }
    )
    empty = scores_of([""] * len(texts), references)
    assert empty.pop("wer") == 100.0 and set(empty.values()) == {0.0}
    assert scores_of(["", "dog"], ["", ""]) == pytest.approx(
        {"cider_d": 0, "cider": 0, "bleu_4": 0, "bleu_3": 0, "bleu_2": 0, "bleu_1": 0, "word_f1": 50, "exact_match": 50}
    )


def test_exact_match_and_word_f1_use_the_best_reference():
    items = caption_items(["a  red dog", "A red dog.", "dog dog"], [["x", "a red dog"], ["a red dog"], ["the dog", "dogs"]])
    assert items.statistics["exact"].tolist() == [1.0, 0.0, 0.0]  # exact to the character
    assert items.statistics["word_f1"].tolist() == pytest.approx([1.0, 1.0, 0.5])
    assert items.outputs == ["a  red dog", "A red dog.", "dog dog"]


def test_words_are_lowercase_without_punctuation_around_them():
    text = "A man's T-shirt: \u201cred\u201d (and blue) - keycap: # ..."
    assert caption_words(text) == ["a", "man's", "t-shirt", "red", "and", "blue", "keycap", "#"]


def test_scores_of_resamples_are_those_of_the_drawn_items():
    outputs, references = corpus(5)
    items = caption_items(outputs, references)
    drawn = np.random.default_rng(0).integers(25, size=25)
    sums = resample(items.statistics, samples=1, seed=0)
    by_name = {metric.name: metric for metric in CAPTIONING}
    direct = caption_items([outputs[i] for i in drawn], [references[i] for i in drawn])
    for name in ("bleu_1", "bleu_4", "exact_match", "word_f1"):
        assert by_name[name].compute(sums).item() == pytest.approx(values(direct, CAPTIONING)[name])
    # document frequencies stay those of the corpus
    assert by_name["cider_d"].compute(sums).item() == pytest.approx(items.statistics["cider_d"][drawn].mean())


def test_scores_have_intervals_and_signatures():
    outputs, references = corpus(3)
    setup = caption_setup(references, search="beam:5/alpha:1")
    assert setup == CaptionSetup("beam:5/alpha:1", references=None)
    assert caption_setup([["a"], ["b"]], search="greedy").references == 1
    results = {score.name: score for score in caption_scores(caption_items(outputs, references), setup)}
    assert list(results) == [metric.name for metric in CAPTIONING]
    for score in results.values():
        assert score.low <= score.value <= score.high and score.low < score.high
    suffix = f"weft:{__version__}|search:beam:5/alpha:1|unit:caption|captions:25|resamples:1000|seed:0|interval:95%"
    assert results["cider_d"].signature == f"nrefs:var|case:lc|tok:words|df:references|stem:no|sigma:6|{suffix}"
    assert results["bleu_2"].signature == f"nrefs:var|case:lc|tok:words|order:2|smooth:none|{suffix}"
    assert results["exact_match"].signature == f"nrefs:var|case:mixed|tok:space|{suffix}"


def test_labels_and_validation_metrics():
    assert [metric.label for metric in CAPTIONING] == [
        *("CIDEr-D", "CIDEr", "BLEU-4", "BLEU-3", "BLEU-2", "BLEU-1", "word F1", "exact match", "WER")
    ]
    assert [metric.name for metric in CAPTIONING_VALIDATION] == ["loss", "cider_d", "bleu_4", "word_f1", "exact_match", "wer"]


def test_wrong_calls_are_refused():
    with pytest.raises(ValueError, match="caption_items: 1 outputs, but 2 references"):
        caption_items(["a"], ["a", "b"])
    with pytest.raises(DataError) as caught:
        caption_scores(caption_items([], []), CaptionSetup("greedy"))
    assert str(caught.value) == "evaluate: no captions to evaluate"
