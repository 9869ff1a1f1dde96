"""Language-model metrics: worked examples, bootstrap intervals against theory, and independence of batching."""

from __future__ import annotations

import math
import time
import tracemalloc

import numpy as np
import pytest

from weft import __version__
from weft.errors import DataError
from weft.metrics.items import ItemStatistics, interval, join, resample, total
from weft.metrics.lm import EvaluationSetup, block_size, language_scores, signature

HOW = EvaluationSetup(context="stride:64/256", unit="line", tokenizer="ab12cd34" * 8)


def items(nats, tokens, **more):
    statistics = {"nats": nats, "tokens": tokens, **more}
    return ItemStatistics(
        np.arange(len(nats)), {name: np.array(values, dtype=np.float64) for name, values in statistics.items()}
    )


def by_name(scores):
    return {score.name: score for score in scores}


def test_scores_by_hand():
    # 20 ln 2 nats over 10 tokens, 20 characters, 40 bytes, 5 words
    two = items([8 * math.log(2), 12 * math.log(2)], [4, 6], characters=[8, 12], bytes=[20, 20], words=[2, 3])
    scores = by_name(language_scores(two, HOW))
    expected = {
        "loss": 2 * math.log(2),
        "bits_per_token": 2,
        "perplexity": 4,
        "bits_per_char": 1,
        "bits_per_byte": 0.5,
        "bits_per_word": 4,
        "word_perplexity": 16,
    }
    assert list(scores) == list(expected)
    assert {name: score.value for name, score in scores.items()} == pytest.approx(expected)
    # both items have the same loss per token, so every resample does; the loss per byte differs
    assert (scores["bits_per_token"].low, scores["bits_per_token"].high) == pytest.approx((2, 2))
    assert scores["bits_per_byte"].low == pytest.approx(0.4)
    assert scores["bits_per_byte"].high == pytest.approx(0.6)


def test_the_signature_names_every_choice():
    [score, *_] = language_scores(items([3.0, 4.0], [600, 400]), HOW)
    assert score.signature == (
        f"weft:{__version__}|context:stride:64/256|unit:line|tokens:1000|resamples:1000|seed:0|interval:95%|tokenizer:ab12cd34"
    )
    other = signature(HOW._replace(context="carry", unit="block", samples=200, seed=7), tokens=5)
    assert other == (
        f"weft:{__version__}|context:carry|unit:block/100|tokens:5|resamples:200|seed:7|interval:95%|tokenizer:ab12cd34"
    )


@pytest.mark.parametrize(
    ("length", "size"), [(5, 100), (5_291, 100), (9_999, 100), (10_000, 200), (24_999, 200), (25_000, 500), (49_999, 500),
                         (50_000, 1000), (10**9, 1000)]
)  # fmt: skip
def test_a_short_text_has_shorter_blocks(length, size):
    assert block_size(length) == size
    assert length < 100 * 50 or length / size >= 50


def test_an_impossible_token_makes_perplexity_infinite_and_nothing_else():
    scores = by_name(language_scores(items([1.0, math.inf, 2.0], [4, 6, 5], words=[1, 1, 0]), HOW))
    for name in ("loss", "perplexity", "word_perplexity"):
        assert scores[name].value == math.inf
        assert scores[name].high == math.inf
        assert not math.isnan(scores[name].low)
    # some resamples miss the item
    assert scores["perplexity"].low == pytest.approx(math.exp(0.25))


def test_perplexity_overflow_is_infinite():
    scores = by_name(language_scores(items([9000.0, 8000.0], [1, 1]), HOW))
    assert scores["perplexity"].value == math.inf
    assert scores["loss"].value == 8500


def test_units_without_counts_give_no_score():
    scores = by_name(language_scores(items([1.0, 2.0], [4, 6], words=[0, 0]), HOW))
    assert list(scores) == ["loss", "bits_per_token", "perplexity"]


def test_one_item_has_no_interval():
    [score, *_] = language_scores(items([1.0], [4]), HOW)
    assert (score.value, score.low, score.high) == (0.25, None, None)


def test_empty_data_is_rejected():
    for empty in (items([], []), items([0.0], [0]), join([])):
        with pytest.raises(DataError) as caught:
            language_scores(empty, HOW)
        assert str(caught.value) == "evaluate: no tokens to evaluate"


def test_a_resample_is_a_sum_over_drawn_items():
    statistics = {"a": np.array([1.0, 10, 100, 1000]), "b": np.array([[1.0, 0], [0, 1], [1, 1], [2, 0]])}
    again = resample(statistics, samples=50, seed=3)
    assert again["a"].shape == (50,)
    assert again["b"].shape == (50, 2)
    for a, b in zip(again["a"], again["b"], strict=True):
        digits = [int(digit) for digit in f"{int(a):04d}"[::-1]]
        assert sum(digits) == 4
        assert b.tolist() == (np.array(digits) @ statistics["b"]).tolist()
    assert np.array_equal(again["a"], resample(statistics, samples=50, seed=3)["a"])
    assert not np.array_equal(again["a"], resample(statistics, samples=50, seed=4)["a"])


def test_infinite_statistics_in_resamples():
    again = resample({"a": np.array([1.0, math.inf, 3.0]), "b": np.array([[-math.inf], [0.0], [1.0]])}, samples=300)
    assert not any(np.isnan(values).any() for values in again.values())
    # (2/3)^3 of the resamples miss an item
    assert np.isinf(again["a"]).mean() == pytest.approx(1 - 8 / 27, abs=0.08)
    assert set(again["b"][np.isinf(again["b"])]) == {-math.inf}


def test_intervals_have_their_nominal_coverage():
    rng = np.random.default_rng(0)
    hits = 0
    for world in range(200):
        tokens = rng.integers(5, 30, size=150).astype(np.float64)
        nats = tokens * (2.0 + rng.normal(0, 0.5, size=150))
        again = resample({"nats": nats, "tokens": tokens}, samples=300, seed=world)
        low, high = interval(again["nats"] / again["tokens"])
        hits += low <= 2.0 <= high
    assert 0.90 <= hits / 200 <= 0.99


def test_interval_bounds_are_order_statistics():
    values = np.random.default_rng(0).permutation(1000).astype(np.float64)
    assert interval(values) == (25, 974)
    values[values > 900] = math.inf
    assert interval(values) == (25, math.inf)
    assert interval(np.array([math.nan, 3.0])) == (3.0, 3.0)
    assert interval(np.array([math.nan])) is None


def test_a_hundred_thousand_items_take_seconds_and_little_memory():
    rng = np.random.default_rng(0)
    statistics = {name: rng.random(100_000) for name in ("nats", "tokens", "characters", "bytes", "words")}
    tracemalloc.start()
    began = time.process_time()
    again = resample(statistics)
    low, high = interval(again["nats"] / again["tokens"])
    seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert low < 1 < high
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(2 / 12 / 100_000) / 0.5, rel=0.15)
    assert seconds < 12
    assert peak < 500e6


def test_items_do_not_depend_on_batching():
    full = ItemStatistics(np.arange(6), {"nats": np.arange(6.0), "hits": np.arange(12.0).reshape(6, 2)}, list("abcdef"))

    def rows(index):
        index = np.array(index)
        return ItemStatistics(index, {name: v[index] for name, v in full.statistics.items()}, ["abcdef"[i] for i in index])

    joined = join([rows([5, 0]), rows([3]), rows([1, 4, 2])])
    assert joined.keys.tolist() == full.keys.tolist()
    assert joined.outputs == full.outputs
    for name, values in full.statistics.items():
        assert np.array_equal(joined.statistics[name], values)


def test_parts_of_one_item_are_added_up():
    parts = [
        ItemStatistics(np.array([1, 0]), {"nats": np.array([1.0, 2.0]), "hits": np.array([[1.0, 0], [0, 1]])}),
        ItemStatistics(np.array([1, 1]), {"nats": np.array([4.0, 8.0]), "hits": np.array([[1.0, 0], [1, 1]])}),
    ]
    joined = join(parts)
    assert joined.keys.tolist() == [0, 1]
    assert joined.statistics["nats"].tolist() == [2, 13]
    assert joined.statistics["hits"].tolist() == [[0, 1], [3, 1]]
    assert {name: values.tolist() for name, values in total(joined.statistics).items()} == {
        "nats": [15],
        "hits": [[3, 2]],
    }


def test_outputs_of_the_same_item_cannot_be_added():
    one = ItemStatistics(np.array([3]), {"nats": np.ones(1)}, ["said"])
    with pytest.raises(ValueError) as caught:
        join([one, one])
    assert str(caught.value) == "join: items with outputs share a key"
