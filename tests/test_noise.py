"""Noise of denoising: its definitions, its rates, and that it depends on (seed, epoch, example) alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.data.noise import (
    KEEP,
    MASK,
    SENTINELS,
    Corrupted,
    Noise,
    RandomNumbers,
    Units,
    corrupt,
    corruption_spans,
    fill_sentinels,
    infilling_spans,
    join_texts,
    poisson_quantiles,
)

FIRST_ID = 1000
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=6)
NOISE = st.builds(
    Noise,
    kind=st.sampled_from([MASK, SENTINELS]),
    first_id=st.just(FIRST_ID),
    max_tokens=st.just(100),
    density=st.floats(0.01, 0.99),
    mean_span_length=st.floats(1.0, 20.0),
    num_sentinels=st.sampled_from([3, 4, 100]),
    deletion_prob=st.just(0.0),
    permutes_sentences=st.just(False),
    rotation_prob=st.just(0.0),
)
SEEDS = st.integers(0, 2**63 - 1)


def make_texts(lengths: list[int]) -> list[np.ndarray]:
    """Texts of different tokens, so that a position can be recognized by its token."""
    return [100 * row + np.arange(length) for row, length in enumerate(lengths)]


def corrupted(texts: list[np.ndarray], noise: Noise, random: RandomNumbers, **units: Any) -> Corrupted:
    joined = join_texts(texts)
    is_first = np.zeros(len(joined.tokens), bool)
    is_first[joined.starts[joined.lengths > 0]] = True
    parts = {"starts_unit": np.ones(len(joined.tokens), bool), "starts_sentence": is_first} | units
    return corrupt(joined, Units(**parts), noise, random)


def numbers(count: int, seed: int = 1, epoch: int = 0) -> RandomNumbers:
    return RandomNumbers(seed, epoch, np.arange(count))


def lists(texts: list[np.ndarray]) -> list[list[int]]:
    return [text.tolist() for text in texts]


# ---- span corruption


def described(text: list[int], source: list[int]) -> list[int]:
    """The target of T5 by its definition, from the text and a source whose tokens other than sentinels are distinct."""
    target, position = [], 0
    for index, token in enumerate(source):
        if token < FIRST_ID:
            position = text.index(token) + 1
            continue
        following = source[index + 1] if index + 1 < len(source) else None
        end = len(text) if following is None else text.index(following)
        target += [token, *text[position:end]]
    return [*target, FIRST_ID + sum(token >= FIRST_ID for token in source)]


@settings(max_examples=200, deadline=None)
@given(LENGTHS, NOISE, SEEDS)
def test_source_and_target_of_span_corruption_determine_the_text(lengths, noise, seed):
    noise, texts = noise._replace(kind=SENTINELS), make_texts(lengths)
    result = corrupted(texts, noise, numbers(len(texts), seed))
    for text, source, target in zip(lists(texts), lists(result.source.split()), lists(result.target.split()), strict=True):
        sentinels = [token for token in source if token >= FIRST_ID]
        assert sentinels == list(range(FIRST_ID, FIRST_ID + len(sentinels))) and len(sentinels) < noise.num_sentinels
        assert target == described(text, source) and fill_sentinels(source, target, FIRST_ID) == text
        assert bool(sentinels) == bool(text)  # a text that is not empty has at least one span


def test_span_corruption_places_spans_uniformly():
    """T5's own algorithm always ends a text with noise, and a short text loses its end only."""
    noise = Noise(SENTINELS, FIRST_ID, 100, density=0.15)
    for length in (1, 2, 3, 7):
        texts = [np.arange(length)] * 4000
        sources = corrupted(texts, noise, numbers(4000)).source.split()
        lost = Counter(token for source in sources for token in range(length) if token not in source)
        assert max(lost.values()) - min(lost.values()) < 0.06 * 4000 and len(lost) == length, length


def test_span_corruption_has_the_rate_and_the_mean_length_of_its_options():
    noise, texts = Noise(SENTINELS, FIRST_ID, 1000, density=0.15, mean_span_length=3.0), [np.arange(200)] * 500
    result = corrupted(texts, noise, numbers(500))
    num_spans = (np.concatenate(result.source.split()) >= FIRST_ID).sum()
    num_noise = 500 * 200 - (np.concatenate(result.source.split()) < FIRST_ID).sum()
    assert num_noise / (500 * 200) == pytest.approx(0.15, abs=1e-3) and num_noise / num_spans == pytest.approx(3.0, abs=0.05)


def test_lengths_and_places_of_spans_are_equally_probable():
    """One span of 2 of 5 tokens has 5 places on a ring; the one across the end is two spans."""
    noise = Noise(SENTINELS, FIRST_ID, 100, density=0.4, mean_span_length=2.0)
    spans = corruption_spans(np.full(5000, 5), noise, numbers(5000))
    by_text: dict[int, list[tuple[int, int]]] = {}
    for row, start, length in zip(*(part.tolist() for part in spans), strict=True):
        by_text.setdefault(row, []).append((start, length))
    counts = Counter(map(tuple, by_text.values()))
    assert set(counts) == {((0, 2),), ((1, 2),), ((2, 2),), ((3, 2),), ((0, 1), (4, 1))}
    assert max(counts.values()) / min(counts.values()) < 1.2
    divided = corruption_spans(np.full(5000, 20), noise._replace(density=0.2, mean_span_length=2.0), numbers(5000))
    lengths = Counter(divided.lengths[np.diff(divided.rows, append=-1) != 0].tolist())  # 1 + 3, 2 + 2, 3 + 1
    assert lengths[1] / 5000 == pytest.approx(1 / 3, abs=0.07) and set(lengths) <= {1, 2, 3}


def test_spans_cannot_outnumber_clean_tokens_and_sentinels():
    dense = Noise(SENTINELS, FIRST_ID, 100, density=0.9, mean_span_length=1.0, num_sentinels=100)
    source = corrupted([np.arange(20)], dense, numbers(1)).source.split()[0]
    assert (source >= FIRST_ID).sum() <= (source < FIRST_ID).sum() + 1
    few = dense._replace(density=0.5, num_sentinels=4)
    assert (corrupted([np.arange(20)], few, numbers(1)).source.split()[0] >= FIRST_ID).sum() in (2, 3)


# ---- infilling


@settings(max_examples=200, deadline=None)
@given(LENGTHS, NOISE, SEEDS)
def test_infilling_keeps_the_other_tokens_in_order_and_the_text_is_the_target(lengths, noise, seed):
    noise, texts = noise._replace(kind=MASK), make_texts(lengths)
    result = corrupted(texts, noise, numbers(len(texts), seed))
    assert lists(result.target.split()) == lists(texts)
    for text, source in zip(lists(texts), lists(result.source.split()), strict=True):
        kept = [token for token in source if token < FIRST_ID]
        assert kept == [token for token in text if token in kept] and set(source) - set(kept) <= {FIRST_ID}
        num_noise = len(text) - len(kept)
        assert not text or (num_noise >= 1 and abs(num_noise - len(text) * noise.density) <= 1)


def test_infilling_has_poisson_lengths_with_zero():
    noise, size = Noise(MASK, FIRST_ID, 10**6, density=0.3, mean_span_length=3.0), 40_000
    spans = infilling_spans(np.full(4, size), noise, numbers(4))
    counts = np.bincount(spans.lengths, minlength=12)
    for length in range(8):
        expected = len(spans.lengths) * math.exp(-3) * 3**length / math.factorial(length)
        assert counts[length] == pytest.approx(expected, abs=5 * math.sqrt(expected)), length
    assert spans.lengths.sum() == pytest.approx(0.3 * 4 * size, abs=4)


def test_poisson_quantiles_are_probabilities():
    quantiles = poisson_quantiles(3.0)
    assert quantiles[0] == math.exp(-3) and quantiles[2] == pytest.approx(math.exp(-3) * (1 + 3 + 4.5))
    assert all(poisson_quantiles(mean)[-1] == pytest.approx(1.0) for mean in (1.0, 3.0, 100.0))


def test_an_empty_span_inserts_a_mask_anywhere():
    """Of a text of two tokens, one is noise: a mask may also be inserted before, between and after."""
    noise = Noise(MASK, FIRST_ID, 100, density=0.5, mean_span_length=1.0)
    sources = {tuple(source) for source in lists(corrupted([np.arange(2)] * 3000, noise, numbers(3000)).source.split())}
    mask = FIRST_ID
    assert {(mask, 1), (0, mask), (mask, mask, 1), (mask, 1, mask), (0, mask, mask), (mask, 0, mask)} <= sources


def test_every_position_is_masked_equally_often():
    noise = Noise(MASK, FIRST_ID, 100, density=0.3)
    for length in (1, 2, 3, 10):
        sources = corrupted([np.arange(length)] * 4000, noise, numbers(4000)).source.split()
        lost = Counter(token for source in sources for token in range(length) if token not in source)
        assert max(lost.values()) - min(lost.values()) < 0.06 * 4000 and len(lost) == length, length


# ---- limits


@settings(max_examples=100, deadline=None)
@given(NOISE, SEEDS, st.integers(3, 20))
def test_no_side_is_longer_than_the_limit(noise, seed, limit):
    texts = make_texts([limit, limit - 1, 1, 0])
    result = corrupted(texts, noise._replace(max_tokens=limit), numbers(4, seed))
    assert max(*result.source.lengths, *result.target.lengths) <= limit
    for text, source, target in zip(lists(texts), *(lists(side.split()) for side in result), strict=True):
        assert (fill_sentinels(source, target, FIRST_ID) if noise.kind == SENTINELS else target) == text


def test_a_text_of_the_maximum_length_has_as_much_noise_as_others():
    """Only inserted masks may be left out where there is no room for them."""
    noise = Noise(MASK, FIRST_ID, 30, density=0.3, mean_span_length=1.0)
    texts = [np.arange(30)] * 500
    limited = corrupted(texts, noise, numbers(500)).source.split()
    free = corrupted(texts, noise._replace(max_tokens=100), numbers(500)).source.split()
    for source, same in zip(lists(limited), lists(free), strict=True):
        assert [token for token in source if token < FIRST_ID] == [token for token in same if token < FIRST_ID]
        assert len(source) == min(30, len(same))


def test_a_seed_may_have_any_size():
    texts, noise = make_texts([20, 30]), Noise(MASK, FIRST_ID, 100)
    results = [lists(corrupted(texts, noise, numbers(2, seed)).source.split()) for seed in (1, 2**64 + 1, 2**80 + 2, 2)]
    assert results[0] == results[1] != results[2] == results[3]


# ---- the other kinds of noise


def test_sentences_are_permuted_as_wholes():
    text, starts = np.arange(7), np.array([1, 0, 0, 1, 0, 1, 0], bool)
    noise = Noise(KEEP, FIRST_ID, 100, permutes_sentences=True)
    results = Counter(
        tuple(
            corrupted([text], noise, RandomNumbers(1, epoch, np.zeros(1, int)), starts_sentence=starts).source.tokens.tolist()
        )
        for epoch in range(600)
    )
    sentences = [(0, 1, 2), (3, 4), (5, 6)]
    assert set(results) == {(*sentences[a], *sentences[b], *sentences[3 - a - b]) for a in range(3) for b in range(3) if a != b}
    assert min(results.values()) > 60


def test_tokens_are_deleted_with_their_probability():
    noise, texts = Noise(KEEP, FIRST_ID, 100, deletion_prob=0.25), [np.arange(50)] * 400
    result = corrupted(texts, noise, numbers(400))
    assert result.source.lengths.mean() == pytest.approx(37.5, abs=0.5) and result.target.lengths.tolist() == [50] * 400
    assert all(source == sorted(source) for source in lists(result.source.split()))
    counts = np.bincount(result.source.tokens)
    assert counts.min() > 0.25 * 400 and counts.max() < 400


def test_texts_are_rotated_with_their_probability():
    noise, texts = Noise(KEEP, FIRST_ID, 100, rotation_prob=0.5), [np.arange(8)] * 4000
    first = Counter(source[0] for source in lists(corrupted(texts, noise, numbers(4000)).source.split()))
    assert first[0] / 4000 == pytest.approx(0.5 + 0.5 / 8, abs=0.03) and len(first) == 8
    for source in lists(corrupted(texts[:50], noise, numbers(50)).source.split()):
        assert source == [*range(source[0], 8), *range(source[0])]


def test_words_are_corrupted_as_wholes():
    """Words of 1, 2 and 3 tokens: a word is lost with all its tokens or not at all."""
    text, starts = np.arange(12), np.array([1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0], bool)
    words = [{0}, {1, 2}, {3, 4, 5}, {6}, {7, 8}, {9, 10, 11}]
    for kind in (MASK, SENTINELS):
        for epoch in range(100):
            noise = Noise(kind, FIRST_ID, 100, density=0.4, mean_span_length=2.0)
            random = RandomNumbers(1, epoch, np.zeros(1, int))
            source = set(corrupted([text], noise, random, starts_unit=starts).source.tokens.tolist())
            assert all(word <= source or not word & source for word in words)


def test_all_noise_together_keeps_the_target():
    noise = Noise(MASK, FIRST_ID, 100, 0.3, 3.0, 0, deletion_prob=0.2, permutes_sentences=True, rotation_prob=1.0)
    texts = make_texts([0, 1, 5, 30])
    result = corrupted(texts, noise, numbers(4))
    assert lists(result.target.split()) == lists(texts) and result.source.lengths[0] == 0
    assert all(
        set(source) <= {*text, FIRST_ID} for source, text in zip(*map(lists, (result.source.split(), texts)), strict=True)
    )


# ---- a function of (seed, epoch, example)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, NOISE, SEEDS, st.integers(0, 10**6))
def test_a_batch_has_the_noise_of_its_texts_alone(lengths, noise, seed, epoch):
    texts, noise = make_texts(lengths), noise._replace(rotation_prob=0.5 if noise.kind == MASK else 0.0)
    order = np.random.default_rng(0).permutation(len(texts))
    together = corrupted([texts[i] for i in order], noise, RandomNumbers(seed, epoch, order))
    for place, index in enumerate(order.tolist()):
        alone = corrupted([texts[index]], noise, RandomNumbers(seed, epoch, np.array([index])))
        assert all(np.array_equal(one.tokens, whole.split()[place]) for one, whole in zip(alone, together, strict=True))


def test_each_seed_epoch_and_example_has_other_noise():
    noise, texts = Noise(MASK, FIRST_ID, 100), [np.arange(40)]
    results = {
        tuple(corrupted(texts, noise, RandomNumbers(seed, epoch, np.array([example]))).source.tokens.tolist())
        for seed in range(4)
        for epoch in range(4)
        for example in range(4)
    }
    assert len(results) == 64


def test_random_numbers_are_uniform_and_independent():
    random = RandomNumbers(3, 1, np.arange(2000))
    rows, index = np.repeat(np.arange(2000), 20), np.tile(np.arange(20), 2000)
    values = np.stack([random.uniform(stream, rows, index) for stream in range(4)])
    assert values.min() >= 0 and values.max() < 1 and values.mean() == pytest.approx(0.5, abs=0.005)
    assert np.abs(np.histogram(values, 10, (0, 1))[0] / values.size - 0.1).max() < 0.004
    assert np.abs(np.corrcoef(values) - np.eye(4)).max() < 0.02  # streams
    table = values[0].reshape(2000, 20)
    assert np.abs(np.corrcoef(table.T) - np.eye(20)).max() < 0.1  # indices
    assert len(np.unique(values)) == values.size
