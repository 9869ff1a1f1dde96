"""Batches of seq2seq examples: order, length bucketing, padding and the token budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from weft.data.batching import BatchSampler, Lines
from weft.data.bucketing import batch_edges
from weft.data.corpus import Corpus, write_corpus
from weft.data.dataset import Dataset
from weft.errors import DataError
from weft.tasks.seq2seq.batching import PairBatch, Pairs, pairs_by_length
from weft.tasks.seq2seq.data import PairFormat
from weft.tasks.seq2seq.data import pairs as pairs_of
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

MULTI30K = Path(__file__).parents[2] / "shared" / "data" / "multi30k"


def side(lengths: list[int], name: str) -> Corpus:
    """Lines of the given numbers of tokens, each with its number + 10 repeated and EOS."""
    tokens = np.concatenate([[number + 10] * length + [2] for number, length in enumerate(lengths)])
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths) + 1)])
    return Corpus(name, tokens.astype(np.uint16), starts, np.zeros((1, 4), dtype=np.int64), "")


def like_text(count: int, seed: int = 0) -> tuple[Corpus, Corpus]:
    """Lengths as in translations: skewed, and correlated between source and target."""
    random = np.random.default_rng(seed)
    source = random.gamma(4.0, 4.0, size=count)
    target = source * random.lognormal(0.0, 0.2, size=count)
    return side(source.astype(int).tolist(), "train.source"), side(target.astype(int).tolist(), "train.target")


def rows_of(batch: PairBatch) -> list[tuple[list[int], list[int]]]:
    """Each row without its padding."""
    return [
        (source[kept].tolist(), target[real].tolist()) for source, kept, target, real in zip(*batch, strict=True)
    ]  # fmt: skip


def test_a_batch_in_full():
    order = Pairs(side([2, 0], "a"), side([1, 3], "b"), batch_tokens=100, seed=0)
    assert (order.batches(0), order.rows) == (1, 28)
    batch = order.batch(0, 0)
    assert order.lines(0, 0).tolist() == [0, 1]  # by target
    assert batch.source.tolist() == [[10, 10, 2], [2, 0, 0]]
    assert batch.source_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.tokens.tolist() == [[1, 10, 2, 0, 0], [1, 11, 11, 11, 2]]
    assert batch.token_mask.tolist() == [[True, True, True, False, False], [True] * 5]
    assert [part.dtype for part in batch] == [torch.int64, torch.bool] * 2
    assert all(part.is_contiguous() for part in batch)


@pytest.mark.parametrize("budget", [64, 256, 5000])
def test_every_pair_occurs_once_per_epoch_with_matching_source_and_target(budget):
    source, target = like_text(300)
    order: BatchSampler[PairBatch] = Pairs(source, target, batch_tokens=budget, seed=3)
    for epoch in range(2):
        actual = [row for index in range(order.batches(epoch)) for row in rows_of(order.batch(epoch, index))]
        assert sorted(actual) == sorted(
            (
                source.tokens[source.starts[line] : source.starts[line + 1]].tolist(),
                [1, *target.tokens[target.starts[line] : target.starts[line + 1]].tolist()],
            )
            for line in range(300)
        )


def test_padded_size_is_within_batch_tokens_unless_one_pair_exceeds_it():
    source, target = like_text(300)
    order = Pairs(source, target, batch_tokens=40, seed=0)
    seen = set()
    for index in range(order.batches(0)):
        batch = order.batch(0, index)
        rows, width = batch.source.size(0), max(batch.source.size(1), batch.tokens.size(1) - 1)
        assert rows * width <= 40 or rows == 1
        seen.add(rows * width > 40)
    assert seen == {True, False}


def test_a_batch_depends_on_nothing_but_epoch_and_index():
    source, target = like_text(300)
    order, other = (Pairs(source, target, batch_tokens=256, seed=3) for _ in range(2))
    places = [(epoch, index) for epoch in range(3) for index in range(order.batches(epoch))]
    for indices in np.random.default_rng(0).permutation(places)[:30].tolist():
        for actual, expected in zip(order.batch(*indices), other.batch(*indices), strict=True):
            assert torch.equal(actual, expected)


def companions(order: Pairs, epoch: int) -> set[tuple[int, int]]:
    """For each pair, the pairs in the same batch."""
    actual = [order.lines(epoch, index).tolist() for index in range(order.batches(epoch))]
    return {(item, other) for batch in actual for item in batch for other in batch if item < other}


def test_batches_differ_between_epochs_and_seeds():
    source, target = like_text(1000)
    order = Pairs(source, target, batch_tokens=256, seed=3)
    first, second = companions(order, 0), companions(order, 1)
    assert len(first & second) < 0.3 * len(first)
    another = Pairs(source, target, batch_tokens=256, seed=4)
    assert order.lines(0, 0).tolist() != another.lines(0, 0).tolist()


def padding(pairs: Pairs) -> tuple[float, float]:
    """Fraction of padding in sources and targets."""
    real, cells = np.zeros(2), np.zeros(2)
    for index in range(pairs.batches(0)):
        lengths = pairs.lengths[pairs.lines(0, index)]
        real += lengths.sum(axis=0)
        cells += len(lengths) * lengths.max(axis=0)
    source, target = 1 - real / cells
    return float(source), float(target)


def test_length_bucketing_pads_little_where_random_batches_are_half_padding():
    source, target = like_text(10_000)
    pairs = Pairs(source, target, batch_tokens=2048, seed=0)
    of_source, of_target = padding(pairs)
    assert of_source < 0.2
    assert of_target < 0.05
    # compared with sorting by target only, and with no sorting
    lengths = pairs.lengths[np.argsort(pairs.lengths[:, 1], kind="stable")]
    edges = batch_edges(lengths.max(axis=1), 2048)
    cells = sum(len(part) * part[:, 0].max() for part in np.split(lengths, edges[1:-1]))
    assert of_source < 0.7 * (1 - lengths[:, 0].sum() / cells)
    cells = sum(len(part) * part[:, 0].max() for part in np.split(pairs.lengths, range(64, 10_000, 64)))
    assert 1 - pairs.lengths[:, 0].sum() / cells > 0.5


def test_no_batch_is_wider_than_largest_batch_in_source_or_target():
    source, target = side([3, 9, 4, 5, 6], "a"), side([8, 2, 4, 5, 7], "b")
    order = Pairs(source, target, batch_tokens=24, seed=0)
    largest = order.largest_batch()
    assert [tuple(part.shape) for part in largest] == [(2, 10), (2, 10), (2, 10), (2, 10)]
    assert sorted(largest.source_mask.sum(dim=1).tolist()) == [7, 10]
    assert sorted(largest.token_mask.sum(dim=1).tolist()) == [9, 10]
    assert Pairs(side([1], "a"), side([50], "b"), batch_tokens=8, seed=0).largest_batch().tokens.shape == (1, 52)


def test_a_batch_is_described_by_its_lines():
    order = Pairs(side([2, 0], "train.source"), side([1, 3], "train.target"), batch_tokens=100, seed=0)
    assert order.describe(0, 0) == "train.source and train.target, lines 1, 2"
    assert order.resets_state(3)


def test_evaluation_reads_every_pair_once_and_short_ones_first():
    source, target = like_text(300)
    actual = list(pairs_by_length(source, target, batch_tokens=200))
    assert sorted(line for lines, _ in actual for line in lines.tolist()) == list(range(300))
    assert [batch.tokens.size(1) for _, batch in actual] == sorted(batch.tokens.size(1) for _, batch in actual)
    for lines, batch in actual:
        assert [row[0][0] for row in rows_of(batch) if len(row[0]) > 1] == [
            line + 10 for line in lines.tolist() if source.starts[line + 1] - source.starts[line] > 1
        ]
        assert batch.source.size(0) * max(batch.source.size(1), batch.tokens.size(1) - 1) <= 200 or len(lines) == 1


def test_unequal_corpora_and_running_text_are_rejected():
    with pytest.raises(DataError) as caught:
        Pairs(side([1, 2], "train.source"), side([1], "train.target"), batch_tokens=8, seed=0)
    assert str(caught.value) == (
        "data: train.source has 2 lines, but train.target has 1; use the same number of sources and targets"
    )
    running = Corpus("train", np.arange(5), None, np.zeros((1, 4), dtype=np.int64), "")
    with pytest.raises(DataError, match="train is running text and has no lines"):
        Pairs(running, running, batch_tokens=8, seed=0)


def test_batch_edges_use_the_maximum_length_so_far():
    assert batch_edges(np.array([5, 3, 3, 8, 1, 1]), 16).tolist() == [0, 3, 5, 6]
    assert Lines(side([3, 3], "a"), batch_tokens=8, seed=0).batches(0) == 1


@pytest.mark.skipif(not MULTI30K.exists(), reason="Multi30k is not there")
def test_translations_of_multi30k_pad_little(tmp_path):
    pairs = Dataset((MULTI30K / "train.en.gz", MULTI30K / "train.de.gz"), PairFormat())
    words = train_tokenizer(TokenizerConfig(type="whitespace"), (text for pair in pairs_of(pairs) for text in pair))
    source, target = (write_corpus(pairs.column(which), words, tmp_path, which) for which in ("source", "target"))
    order = Pairs(source, target, batch_tokens=2048, seed=0)
    assert len(order.lengths) == 29_000
    of_source, of_target = padding(order)
    assert of_source < 0.14
    assert of_target < 0.05
