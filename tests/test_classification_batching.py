"""Batches of labeled texts: tokens, segments, truncation and order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from weft.data.batching import BatchSampler
from weft.data.bucketing import ExampleBatchSampler, by_length
from weft.data.corpus import Corpus, corpus_from_lines
from weft.data.text_batching import LabeledTexts, TextBatch, pack_rows
from weft.text.tokenizers import TokenizerConfig, train_tokenizer


def column(lengths: list[int], name: str = "train.0", first: int = 10) -> Corpus:
    """Lines of the given numbers of tokens, their number + `first` repeated, each with its end."""
    tokens = np.concatenate([[number + first] * length + [2] for number, length in enumerate(lengths)])
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths) + 1)])
    return Corpus(name, tokens.astype(np.uint16), starts, np.zeros((1, 4), dtype=np.int64), "")


def labelled(*columns: Corpus, longest: int = 1000) -> LabeledTexts:
    count = len(columns[0].line_starts()) - 1
    return LabeledTexts(columns, np.arange(count)[:, None], np.zeros(count, np.int64), longest)


def like_text(count: int = 300, seed: int = 0) -> LabeledTexts:
    lengths = np.random.default_rng(seed).gamma(2.0, 6.0, size=count).astype(int)
    return labelled(column(lengths.tolist(), first=100))


def rows_of(batch: TextBatch) -> list[list[int]]:
    """Each row without its padding."""
    return [row[kept].tolist() for row, kept in zip(batch.tokens, batch.token_mask, strict=True)]


def test_a_batch_in_full():
    batch = labelled(column([2, 0])).batch(np.array([1, 0]))
    assert batch.tokens.tolist() == [[1, 2, 0, 0], [1, 10, 10, 2]]
    assert batch.token_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.segments is None
    assert batch.labels.tolist() == [[1], [0]]
    assert (batch.tokens.dtype, batch.token_mask.dtype, batch.labels.dtype) == (torch.int64, torch.bool, torch.int64)


def test_a_text_pair_is_one_row_with_two_segments():
    batch = labelled(column([2, 0]), column([1, 2], "train.1", first=20)).batch(np.array([0, 1]))
    assert batch.tokens.tolist() == [[1, 10, 10, 2, 20, 2], [1, 2, 21, 21, 2, 0]]
    assert batch.segments is not None
    # <s> and the first </s> are of the first text, padding is of none and says 0
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 0]]
    assert batch.token_mask.sum(1).tolist() == [6, 5]


def test_multilabel_targets_are_unchanged():
    data = replace(labelled(column([1, 1])), labels=np.array([[1, 0, 1], [0, 0, 0]]))
    assert data.batch(np.array([1, 0])).labels.tolist() == [[0, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    ("lengths", "longest", "kept"),
    [
        ((9,), 5, (3,)),
        ((3,), 5, (3,)),
        ((6, 2), 8, (3, 2)),  # the longer text first
        ((2, 6), 8, (2, 3)),
        ((6, 6), 8, (3, 2)),  # both below half: half each, the first has the odd one
        ((9, 0), 8, (5, 0)),
        ((0, 9), 8, (0, 5)),
        ((9, 9), 4, (1, 0)),  # the least that may be asked for
        ((2, 3), 8, (2, 3)),
    ],
)
def test_truncation_keeps_eos(lengths, longest, kept):
    row = [np.array([10 * (1 + at)] * length + [2]) for at, length in enumerate(lengths)]
    tokens, keep, _ = pack_rows([row], max_length=longest)
    wanted = [1]
    for at, length in enumerate(kept):
        wanted += [10 * (1 + at)] * length + [2]
    assert tokens.tolist() == [wanted]
    assert keep.all()
    assert len(wanted) == min(longest, 1 + sum(length + 1 for length in lengths))


def test_truncation_keeps_the_start_of_each_text_and_its_segment():
    row = [np.array([11, 12, 13, 14, 2]), np.array([21, 22, 23, 24, 2])]
    tokens, _, segments = pack_rows([row, [np.array([2]), np.array([2])]], max_length=7)
    assert tokens.tolist() == [[1, 11, 12, 2, 21, 22, 2], [1, 2, 2, 0, 0, 0, 0]]
    assert segments is not None
    assert segments.tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0, 0]]


def test_lengths_include_special_tokens():
    for data in (labelled(column([2, 0, 9]), longest=7), labelled(column([2, 0, 9]), column([1, 4, 9], "b"), longest=7)):
        for at, length in enumerate(data.lengths().tolist()):
            assert data.batch(np.array([at])).tokens.shape == (1, length)


@pytest.mark.parametrize("budget", [48, 5000])
def test_every_text_occurs_once_per_epoch_with_its_label(budget):
    data = like_text()
    order: BatchSampler[TextBatch] = ExampleBatchSampler(data, batch_tokens=budget, seed=3)
    for epoch in range(2):
        batches = [order.batch(epoch, index) for index in range(order.batches(epoch))]
        found = [(row, label) for batch in batches for row, label in zip(rows_of(batch), batch.labels[:, 0], strict=True)]
        assert sorted(int(label) for _, label in found) == list(range(300))
        assert all(set(row[1:-1]) <= {int(label) + 100} for row, label in found)
        assert all(batch.tokens.numel() <= budget or len(batch.tokens) == 1 for batch in batches)


def test_a_batch_depends_only_on_seed_epoch_and_index():
    order, other, another = (ExampleBatchSampler(like_text(), batch_tokens=256, seed=seed) for seed in (3, 3, 4))
    places = [(epoch, index) for epoch in range(2) for index in range(order.batches(epoch))]
    for place in np.random.default_rng(0).permutation(places)[:20].tolist():
        assert torch.equal(order.batch(*place).tokens, other.batch(*place).tokens)
    assert order.buckets.members(0, 0).tolist() != order.buckets.members(1, 0).tolist()
    assert order.buckets.members(0, 0).tolist() != another.buckets.members(0, 0).tolist()


def test_batches_have_similar_lengths():
    order = ExampleBatchSampler(like_text(2000), batch_tokens=512, seed=0)
    kept = [order.batch(0, index).token_mask for index in range(order.batches(0))]
    assert sum(part.sum() for part in kept) / sum(part.numel() for part in kept) > 0.9


def test_no_batch_exceeds_the_maximum_size():
    order = ExampleBatchSampler(like_text(), batch_tokens=200, seed=0)
    largest = order.largest_batch()
    assert largest.tokens.size(1) == order.data.lengths().max()
    assert largest.tokens.numel() <= 200
    assert all(order.batch(0, at).tokens.size(1) <= largest.tokens.size(1) for at in range(order.batches(0)))
    alone = ExampleBatchSampler(labelled(column([50, 1])), batch_tokens=8, seed=0)
    assert alone.largest_batch().tokens.shape == (1, 52)


def test_a_batch_is_described_by_its_examples():
    order = ExampleBatchSampler(labelled(column([1] * 11)), batch_tokens=1000, seed=0)
    assert order.describe(0, 0) == "train.0, examples 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"
    assert order.resets_state(3)
    assert order.rows == 333


def test_evaluation_reads_every_text_once_in_order_of_length():
    data = like_text()
    found = list(by_length(data, batch_tokens=200))
    assert sorted(at for members, _ in found for at in members.tolist()) == list(range(300))
    assert [batch.tokens.size(1) for _, batch in found] == sorted(batch.tokens.size(1) for _, batch in found)
    assert all(batch.labels[:, 0].tolist() == members.tolist() for members, batch in found)


def test_lines_in_memory_equal_the_tokenizer_output():
    lines = ["the cat", "", "sat cat sat", ""]
    tokenizer = train_tokenizer(TokenizerConfig(type="whitespace"), iter(lines))
    corpus = corpus_from_lines(tokenizer, lines)
    starts = corpus.line_starts()
    for at, line in enumerate(lines):
        assert corpus.tokens[starts[at] : starts[at + 1]].tolist() == [*tokenizer.encode(line), tokenizer.eos_id]
    assert len(starts) == 5
    assert corpus.tokenizer == tokenizer.hash
