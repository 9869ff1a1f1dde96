"""Batches of tagged sentences: first tokens of words, characters, and batch order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weft.data.batching import BatchSampler
from weft.data.bucketing import ExampleBatchSampler, by_length
from weft.data.corpus import Corpus
from weft.data.tag_batching import Sentences, TagBatch, padded_rows


def lines(name: str, words: list[list[int]]) -> Corpus:
    """Lines of words with these tokens, each with EOS."""
    starts = np.concatenate([[0], np.cumsum([len(word) + 1 for word in words])])
    tokens = np.array([token for word in words for token in [*word, 2]], np.uint16)
    return Corpus(name, tokens, starts, np.zeros((1, 4), dtype=np.int64), "")


def sentences(words: list[list[int]], sizes: list[int], letters: list[list[int]] | None = None) -> Sentences:
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    spelled = None if letters is None else lines("train.letters", letters)
    return Sentences(lines("train.words", words), spelled, edges, np.arange(len(words)))


def like_text(count: int = 200, seed: int = 0) -> Sentences:
    """Words of one to three tokens, their number + 100 repeated, with up to seven characters."""
    random = np.random.default_rng(seed)
    sizes = 1 + random.gamma(2.0, 4.0, size=count).astype(int)
    words = [[100 + index] * int(random.integers(1, 4)) for index in range(sizes.sum())]
    letters = [[3 + index % 20] * int(random.integers(1, 8)) for index in range(sizes.sum())]
    return sentences(words, sizes.tolist(), letters)


def test_a_batch_in_full():
    data = sentences([[10], [11, 12], [13], [14]], [3, 1], [[5, 6], [7], [8, 8, 8], []])
    batch = data.batch(np.array([1, 0]))
    assert batch.tokens.tolist() == [[1, 14, 2, 0, 0, 0], [1, 10, 11, 12, 13, 2]]
    assert batch.token_mask.sum(1).tolist() == [3, 6]
    assert batch.first.tolist() == [[1, 0, 0], [1, 2, 4]]
    assert batch.word_mask.tolist() == [[True, False, False], [True, True, True]]
    assert batch.tags.tolist() == [[3, 0, 0], [0, 1, 2]]
    assert batch.char_ids is not None and batch.char_mask is not None
    assert batch.char_ids.tolist() == [
        [[2, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
        [[5, 6, 2, 0], [7, 2, 0, 0], [8, 8, 8, 2]],
    ]
    assert batch.char_mask.sum(2).tolist() == [[1, 1, 1], [3, 2, 4]]  # pooling needs at least one character, also on padding
    assert {part.dtype for part in batch if part is not None} == {torch.int64, torch.bool}


def test_without_a_char_encoder_there_are_no_characters():
    batch = sentences([[10], [11]], [2]).batch(np.array([0]))
    assert (batch.char_ids, batch.char_mask) == (None, None)


def test_a_word_without_tokens_uses_the_next_token():
    batch = sentences([[], [11], [], []], [3, 1]).batch(np.array([0, 1]))
    assert batch.tokens.tolist() == [[1, 11, 2], [1, 2, 0]]
    assert batch.first.tolist() == [[1, 1, 2], [1, 0, 0]]  # the next word, or </s>
    assert batch.word_mask.sum(1).tolist() == [3, 1]


def test_a_sentence_without_words_is_an_empty_row():
    data = sentences([[10]], [1, 0])
    batch = data.batch(np.array([1]))
    assert batch.tokens.tolist() == [[1, 2]]
    assert batch.word_mask.tolist() == [[False]]
    assert data.lengths().tolist() == [3, 3]


def test_lengths_are_row_lengths():
    data = like_text(40)
    for index, length in enumerate(data.lengths().tolist()):
        assert data.batch(np.array([index])).tokens.shape == (1, length)


@pytest.mark.parametrize("budget", [48, 5000])
def test_every_sentence_occurs_once_per_epoch_with_its_words_and_tags(budget):
    order: BatchSampler[TagBatch] = ExampleBatchSampler(like_text(), batch_tokens=budget, seed=3)
    words = []
    for index in range(order.batches(0)):
        batch = order.batch(0, index)
        assert batch.tokens.numel() <= budget or len(batch.tokens) == 1
        begun = batch.tokens.gather(1, batch.first)
        assert torch.equal(begun[batch.word_mask], batch.tags[batch.word_mask] + 100)
        words += batch.tags[batch.word_mask].tolist()
        assert batch.char_ids is not None
        assert torch.equal(batch.char_ids[..., 0][batch.word_mask], 3 + batch.tags[batch.word_mask] % 20)
    assert sorted(words) == list(range(len(words)))


def test_a_batch_depends_on_nothing_but_seed_epoch_and_index():
    order, other, another = (ExampleBatchSampler(like_text(), batch_tokens=256, seed=seed) for seed in (3, 3, 4))
    places = [(epoch, index) for epoch in range(2) for index in range(order.batches(epoch))]
    for indices in np.random.default_rng(0).permutation(places)[:20].tolist():
        for actual, expected in zip(order.batch(*indices), other.batch(*indices), strict=True):
            assert actual is not None and expected is not None and torch.equal(actual, expected)
    assert order.buckets.members(0, 0).tolist() != another.buckets.members(0, 0).tolist()
    assert order.rows == order.buckets.rows


def test_largest_batch_is_the_widest_in_tokens_and_characters():
    words, letters = [[9]] * 6 + [[8]], [[5]] * 6 + [[5] * 30]  # a short sentence has the long word
    order = ExampleBatchSampler(sentences(words, [6, 1], letters), batch_tokens=8, seed=0)
    largest = order.largest_batch()
    assert largest.tokens.shape == (1, 8)
    assert largest.char_ids is not None and largest.char_mask is not None
    assert largest.char_ids.shape == largest.char_mask.shape == (1, 6, 31)
    assert largest.char_mask.sum().item() == 12
    # cropped anywhere, no word is outside of the crop
    assert largest.first.eq(0).all()
    assert ExampleBatchSampler(sentences(words, [6, 1]), batch_tokens=8, seed=0).largest_batch().char_ids is None


def test_a_batch_is_described_by_its_sentences():
    order = ExampleBatchSampler(sentences([[10]] * 3, [2, 1]), batch_tokens=100, seed=0)
    assert order.describe(0, 0) == "train.words, sentences 1, 2"
    assert order.resets_state(3)


def test_evaluation_reads_every_sentence_once_and_short_ones_first():
    data = like_text()
    actual = list(by_length(data, batch_tokens=200))
    assert sorted(index for members, _ in actual for index in members.tolist()) == list(range(200))
    assert [batch.tokens.size(1) for _, batch in actual] == sorted(batch.tokens.size(1) for _, batch in actual)
    for members, batch in actual:
        assert batch.word_mask.sum(1).tolist() == np.diff(data.edges)[members].tolist()


def test_empty_rows_have_one_column():
    padded, real = padded_rows([np.zeros(0, np.int64)] * 2)
    assert padded.tolist() == [[0], [0]]
    assert not real.any()
