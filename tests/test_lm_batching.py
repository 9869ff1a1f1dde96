"""Batches of language models: windows, streams, lines, and the passes for evaluation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.data import shuffle
from weft.data.batching import BatchSampler, Lines, Streams, Windows, by_length, carried_windows, sliding_windows
from weft.data.corpus import Corpus, write_corpus
from weft.data.shuffle import Permutation
from weft.data.source import Source
from weft.errors import DataError
from weft.text.tokenizers import TokenizerConfig, train_tokenizer


def running(count: int) -> Corpus:
    """A corpus of running text whose token i is i + 10."""
    return Corpus("train", np.arange(10, 10 + count, dtype=np.uint16), None, np.zeros((1, 4), dtype=np.int64), "")


def of_lines(lengths: list[int]) -> Corpus:
    """Lines of the given numbers of tokens, each with its number + 10 repeated and EOS."""
    tokens = np.concatenate([[number + 10] * length + [2] for number, length in enumerate(lengths)])
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths) + 1)])
    return Corpus("train", tokens.astype(np.uint16), starts, np.zeros((1, 4), dtype=np.int64), "")


def lengths_like_text(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).gamma(2.0, 8.0, size=count).astype(int).tolist()


def error_message(action) -> str:
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


ORDERS = {
    "windows": Windows(running(1000), context_length=16, stride=8, rows=7, seed=3),
    "streams": Streams(running(1000), context_length=16, rows=7),
    "lines": Lines(of_lines(lengths_like_text(300)), batch_tokens=256, seed=3),
}
every_order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())


@every_order
def test_a_batch_depends_on_nothing_but_epoch_and_index(order: BatchSampler):
    places = [(epoch, index) for epoch in range(3) for index in range(order.batches(epoch))]
    first = [order.batch(*indices) for indices in places]
    for number in np.random.default_rng(0).permutation(len(places))[:60]:
        again = order.batch(*places[number])
        assert torch.equal(again.tokens, first[number].tokens)
        assert (again.token_mask is None) == (first[number].token_mask is None)
        assert again.token_mask is None or torch.equal(again.token_mask, first[number].token_mask)


@every_order
def test_rows_are_int64_and_at_least_one_target_long(order: BatchSampler):
    for index in range(order.batches(0)):
        tokens, keep = order.batch(0, index)
        assert tokens.dtype is torch.int64
        assert tokens.size(1) >= 2
        if keep is not None:
            assert keep.shape == tokens.shape
            assert keep.dtype is torch.bool
            # padding is on the right, and 0
            assert (keep[:, 1:] <= keep[:, :-1]).all()
            assert (tokens[~keep] == 0).all()


@every_order
def test_no_batch_is_larger_than_largest_batch(order: BatchSampler):
    largest = order.largest_batch().tokens[:, 1:]
    for index in range(order.batches(0)):
        tokens = order.batch(0, index).tokens[:, 1:]
        assert tokens.size(1) <= largest.size(1)
        assert tokens.numel() <= max(largest.numel(), 256)


def shuffled(count: int, seed: int) -> Permutation:
    return Permutation(count, np.random.default_rng(seed))


@pytest.mark.parametrize("cache_size", [0, 1 << 20])
@given(count=st.integers(1, 3000), seed=st.integers(0, 2**63))
@settings(deadline=None, max_examples=30)
def test_a_shuffle_is_a_permutation(cache_size, count, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "MAX_CACHED", cache_size)
        order = shuffled(count, seed)
        full = order(np.arange(count)).tolist()
        assert sorted(full) == list(range(count))
        assert order(np.arange(count // 2, count)).tolist() == full[count // 2 :]
        assert shuffled(count, seed)(np.arange(count)).tolist() == full


def test_a_shuffle_of_many_items_is_random():
    count = 5_000_011
    assert count > shuffle.MAX_CACHED
    actual = shuffled(count, 1)(np.arange(20_000))
    assert len(set(actual.tolist())) == 20_000
    assert abs(np.corrcoef(np.arange(20_000), actual)[0, 1]) < 0.04
    assert abs(np.corrcoef(actual[1:], actual[:-1])[0, 1]) < 0.04
    # positions of the first number over seeds, and differences of neighbors, in tenths of the range
    first = np.array([shuffled(count, seed)(np.arange(1))[0] for seed in range(4000)])
    for values in (actual, np.diff(actual) % count, first):
        counts = np.bincount(values * 10 // count, minlength=10)
        expected = len(values) / 10
        # the 0.999999 quantile of chi-square with 9 degrees of freedom
        assert ((counts - expected) ** 2 / expected).sum() < 46


def windows_of(order: Windows, epoch: int) -> torch.Tensor:
    return torch.cat([order.batch(epoch, index).tokens for index in range(order.batches(epoch))])


def test_windows_are_full_and_bos_precedes_the_first_token():
    order = Windows(running(20), context_length=4, stride=4, rows=3, seed=0)
    seen = set()
    for epoch in range(40):
        rows = windows_of(order, epoch)
        assert rows.shape == (order.count, 5)
        for row in rows.tolist():
            assert row[1:] == list(range(row[1], row[1] + 4))
            assert row[0] == (1 if row[1] == 10 else row[1] - 1)
            seen.update(row[1:])
    # over the epochs every token is a target
    assert seen == set(range(10, 30))


def test_windows_of_an_epoch_share_an_offset_and_do_not_repeat():
    order = Windows(running(1000), context_length=16, stride=8, rows=7, seed=3)
    grids = set()
    for epoch in range(30):
        starts = windows_of(order, epoch)[:, 1].sort().values
        assert (starts.diff() == 8).all()
        assert 10 <= starts[0] < 10 + 2 * 8
        assert 1010 - 2 * 8 < starts[-1] + 16 <= 1010
        grids.add(int(starts[0]))
    assert len(grids) > 5


def test_window_order_depends_on_epoch_and_seed():
    first = windows_of(Windows(running(1000), context_length=8, stride=8, rows=9, seed=1), 0)
    assert not torch.equal(first, windows_of(Windows(running(1000), context_length=8, stride=8, rows=9, seed=1), 1))
    assert not torch.equal(first, windows_of(Windows(running(1000), context_length=8, stride=8, rows=9, seed=2), 0))


@given(count=st.integers(1, 60), window=st.integers(1, 60), stride=st.integers(1, 60), rows=st.integers(1, 9))
@settings(deadline=None)
def test_windows_of_any_size_stay_inside(count, window, stride, rows):
    if window > count:
        return
    order = Windows(running(count), context_length=window, stride=min(stride, window), rows=rows, seed=0)
    for epoch in range(3):
        actual = windows_of(order, epoch)
        assert len(actual) == order.count
        assert int(actual.max()) < 10 + count
    # at most what a grid loses: less than two strides
    assert order.count * order.stride + window - order.stride > count - 2 * order.stride


def test_streams_continue_from_batch_to_batch():
    corpus = running(103)
    order = Streams(corpus, context_length=4, rows=5)
    parts = [order.batch(0, index).tokens for index in range(order.batches(0))]
    assert [part.size(1) - 1 for part in parts] == [4, 4, 4, 4, 4]
    for before, after in pairwise(parts):
        assert torch.equal(before[:, -1], after[:, 0])
    targets = torch.cat([part[:, 1:] for part in parts], dim=1)
    # all but the last three tokens, each once
    assert targets.flatten().tolist() == list(range(10, 110))
    assert parts[0][:, 0].tolist() == [1, 29, 49, 69, 89]
    assert [order.resets_state(index) for index in range(3)] == [True, False, False]
    assert torch.equal(order.batch(7, 2).tokens, parts[2])
    short = Streams(running(103), context_length=6, rows=5)
    assert [short.batch(0, index).tokens.size(1) - 1 for index in range(short.batches(0))] == [6, 6, 6, 2]


def test_every_line_occurs_once_per_epoch_untruncated():
    lengths = [*lengths_like_text(500), 0, 400]
    order = Lines(of_lines(lengths), batch_tokens=128, seed=0)
    for epoch in range(2):
        lines_read = []
        for index in range(order.batches(epoch)):
            tokens, keep = order.batch(epoch, index)
            assert tokens[:, 1:].numel() <= 128 or len(tokens) == 1
            for number, row, real in zip(order.lines(epoch, index), tokens, keep, strict=True):
                assert row[real].tolist() == [1] + [int(number) + 10] * lengths[number] + [2]
                lines_read.append(int(number))
        assert sorted(lines_read) == list(range(len(lengths)))


def test_little_of_a_batch_is_padding():
    corpus = of_lines(lengths_like_text(20_000))
    order = Lines(corpus, batch_tokens=1024, seed=0)
    sizes = [order.batch(0, index) for index in range(order.batches(0))]
    padded = sum(tokens[:, 1:].numel() for tokens, _ in sizes)
    assert len(corpus.tokens) / padded > 0.95
    assert padded / (1024 * len(sizes)) > 0.9


def test_batches_of_lines_differ_between_epochs():
    order = Lines(of_lines(lengths_like_text(2000)), batch_tokens=256, seed=0)
    first, second = (
        {frozenset(order.lines(epoch, index).tolist()) for index in range(order.batches(epoch))} for epoch in (0, 1)
    )
    assert len(first & second) < len(first) / 20
    widths = [order.batch(0, index).tokens.size(1) for index in range(order.batches(0))]
    assert abs(np.corrcoef(np.arange(len(widths)), widths)[0, 1]) < 0.3


def test_the_largest_batch_of_lines_holds_the_longest():
    order = Lines(of_lines([3, 9, 1, 9, 2]), batch_tokens=20, seed=0)
    assert order.largest_batch().tokens.shape == (2, 11)
    assert Lines(of_lines([3, 50]), batch_tokens=20, seed=0).largest_batch().tokens.shape == (1, 52)


def counted(stretches) -> list[int]:
    """The counted tokens of the corpus, in order."""
    results = []
    for stretch in stretches:
        for row, (first, index) in enumerate(zip(stretch.first.tolist(), stretch.start.tolist(), strict=True)):
            real = stretch.tokens.shape[1] if stretch.token_mask is None else int(stretch.token_mask[row].sum())
            for target in range(first, real - 1):
                results.append((index + target, int(stretch.tokens[row, target + 1])))
    return results


@given(count=st.integers(1, 80), window=st.integers(1, 90), stride=st.integers(1, 90), rows=st.integers(1, 7))
@settings(deadline=None)
def test_strided_windows_count_every_token_once(count, window, stride, rows):
    stride = min(stride, window)
    stretches = list(sliding_windows(running(count), context_length=window, stride=stride, rows=rows))
    assert counted(stretches) == [(number, number + 10) for number in range(count)]
    for number, stretch in enumerate(stretches):
        assert len(stretch.tokens) <= rows
        assert stretch.token_mask is None
        assert stretch.resets_state
        assert stretch.tokens[0, 0] == (1 if stretch.start[0] == 0 else stretch.start[0] + 9)
        # all but the first window have at least window - stride tokens of context
        assert (stretch.first[number == 0 :] >= min(window - stride, count)).all()


def test_strided_windows_by_hand():
    first, second = sliding_windows(running(9), context_length=4, stride=2, rows=2)
    assert first.tokens.tolist() == [[1, 10, 11, 12, 13], [11, 12, 13, 14, 15]]
    assert second.tokens.tolist() == [[13, 14, 15, 16, 17], [14, 15, 16, 17, 18]]
    assert [first.first.tolist(), second.first.tolist()] == [[0, 2], [2, 3]]
    assert [first.start.tolist(), second.start.tolist()] == [[0, 2], [4, 5]]


@pytest.mark.parametrize("window", [1, 4, 9, 100])
def test_a_carried_pass_counts_every_token_once_in_order(window):
    stretches = list(carried_windows(running(30), context_length=window))
    assert counted(stretches) == [(number, number + 10) for number in range(30)]
    assert [stretch.resets_state for stretch in stretches] == [True] + [False] * (len(stretches) - 1)


def test_lines_by_length_count_every_token_once_and_have_their_index():
    lengths = [*lengths_like_text(200), 0, 300]
    corpus = of_lines(lengths)
    stretches = list(by_length(corpus, batch_tokens=128))
    assert sorted(number for number, _ in counted(stretches)) == list(range(len(corpus.tokens)))
    assert sorted(np.concatenate([stretch.lines for stretch in stretches]).tolist()) == list(range(len(lengths)))
    for stretch in stretches:
        assert stretch.tokens[:, 1:].size <= 128 or len(stretch.tokens) == 1
        assert stretch.token_mask.sum(1).tolist() == [lengths[line] + 2 for line in stretch.lines]
        assert stretch.start.tolist() == corpus.starts[stretch.lines].tolist()


def test_too_small_data_is_rejected_with_numbers_and_a_suggestion():
    message = error_message(lambda: Windows(running(9), context_length=10, stride=10, rows=2, seed=0))
    assert message == ("data.context_length: train has only 9 tokens; use more text or a context_length of at most 9")
    message = error_message(lambda: Streams(running(9), context_length=10, rows=12))
    assert message == "train.batch_tokens: train has only 9 tokens, too few for 12 streams; use more text or smaller batches"
    message = error_message(lambda: Lines(running(9), batch_tokens=10, seed=0))
    assert message == 'data.read_as: train is running text and has no lines; set data.read_as = "lines"'
    assert error_message(lambda: list(by_length(running(9), batch_tokens=10))) == message


def test_batch_description():
    assert ORDERS["streams"].describe(0, 1) == "train, tokens 16 to 31 of each of 7 streams of 142"
    order = Windows(running(20), context_length=4, stride=4, rows=2, seed=0)
    starts = order.starts(5, 1).tolist()
    assert order.describe(5, 1) == f"train, windows of 4 tokens from token {starts[0]}, {starts[1]}"
    order = Lines(of_lines([1] * 12), batch_tokens=100, seed=0)
    assert order.describe(0, 0) == "train, lines 1, 2, 3, 4, 5, 6, 7, 8 and 4 more"


def test_batches_of_a_corpus_on_disk(tmp_path: Path):
    (tmp_path / "a.txt").write_text("abc\nde\n")
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), iter(["abcde\n"]))
    corpus = write_corpus(Source((tmp_path / "a.txt",)), tokenizer, tmp_path, "train")
    tokens = Windows(corpus, context_length=7, stride=7, rows=4, seed=0).batch(0, 0).tokens
    assert tokens[0, 0] == tokenizer.bos_id
    assert tokenizer.decode(tokens[0].tolist()) == "abc\nde\n"
    corpus = write_corpus(Source((tmp_path / "a.txt",), lines=True), tokenizer, tmp_path, "lines")
    tokens, keep = Lines(corpus, batch_tokens=100, seed=0).batch(0, 0)
    assert tokens.tolist() == [[1, 7, 8, 2, 0], [1, 4, 5, 6, 2]]
    assert keep.sum(1).tolist() == [4, 5]


# ---- more lines than are kept in memory


@pytest.mark.parametrize("count", [700, 6000])
def test_many_lines_are_streamed_each_once_in_batches_of_similar_length(count, monkeypatch):
    monkeypatch.setattr("weft.data.bucketing.MAX_STORED", 100)
    monkeypatch.setattr("weft.data.batching.MAX_STORED", 100)
    monkeypatch.setattr("weft.data.streamed_buckets.CHUNK_LINES", 64)
    monkeypatch.setattr("weft.data.bucketing.POOL_BATCHES", 10)
    lengths = np.array(lengths_like_text(count))
    corpus, orders = of_lines(lengths.tolist()), []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        order = Lines(corpus, batch_tokens=128, seed=seed)
        members = [order.lines(epoch, index) for index in range(order.batches(epoch))]
        assert sorted(np.concatenate(members).tolist()) == list(range(count))
        orders.append(np.concatenate(members).tolist())
        again = Lines(corpus, batch_tokens=128, seed=seed)  # from any batch, as a resumed run
        for index in np.random.default_rng(0).permutation(len(members))[:40]:
            assert np.array_equal(again.lines(epoch, int(index)), members[index])
        positions = [len(batch) * (lengths[batch].max() + 1) for batch in members]
        assert all(size <= 128 or len(batch) == 1 for size, batch in zip(positions, members, strict=True))
        padding = 1 - (lengths.sum() + count) / sum(positions)
        assert padding < 0.1
        ranks = np.argsort(orders[-1])  # neighbors of the file are apart
        assert np.median(np.abs(np.diff(ranks))) > 50
    assert orders[0] != orders[1] and orders[0] != orders[2]
    order = Lines(corpus, batch_tokens=128, seed=0)
    longest = order.buckets.longest_examples()
    rows = max(1, 128 // (lengths.max() + 1))
    assert sorted(lengths[longest]) == sorted(np.sort(lengths)[-rows:])
    assert order.rows == int(128 / np.mean(lengths + 1))
    assert order.data.loss_count(np.array([0, 5])) == lengths[0] + lengths[5] + 2
