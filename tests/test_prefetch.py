"""Batches made ahead by a thread, and batches padded to one shape: the same tokens in the same order."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from small_runs import SilentCallback
from test_loop import CORPUS, Notebook, small_loop, small_model, weights

from weft.data.batching import Batch, Streams, Windows
from weft.data.equal_shapes import EqualShapes
from weft.data.prefetch import AHEAD, Prefetcher
from weft.errors import DivergedError
from weft.nn.positions import angles, remove_turns
from weft.training.loop import Loop

ROWS, LENGTH = 5, 4


def windows() -> Windows:
    """24 windows: the last of five batches has four rows."""
    return Windows(CORPUS, context_length=LENGTH, stride=LENGTH, rows=ROWS, seed=0)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "weft-batches"]


@pytest.fixture
def prefetcher(request: pytest.FixtureRequest) -> Any:
    prefetcher = Prefetcher(windows())
    yield prefetcher
    prefetcher.close()
    assert not threads()


# ---- a thread makes batches ahead


def test_batches_in_order_over_epochs_are_those_of_the_sampler(prefetcher):
    plain = windows()
    for epoch in range(3):
        assert prefetcher.batches(epoch) == plain.batches(epoch)
        for index in range(plain.batches(epoch)):
            assert torch.equal(prefetcher.batch(epoch, index).tokens, plain.batch(epoch, index).tokens)
            assert prefetcher.describe(epoch, index) == plain.describe(epoch, index)
    assert (prefetcher.rows, prefetcher.resets_state(1)) == (plain.rows, plain.resets_state(1))


def test_batches_in_any_order_are_those_of_the_sampler(prefetcher):
    plain = windows()
    for epoch, index in [(0, 3), (0, 4), (1, 0), (0, 0), (0, 0), (2, 1), (0, 1)]:
        assert torch.equal(prefetcher.batch(epoch, index).tokens, plain.batch(epoch, index).tokens)


def test_only_a_few_batches_are_made_ahead(prefetcher):
    calls, batch = [], prefetcher.sampler.batch
    prefetcher.sampler.batch = lambda epoch, index: (calls.append((epoch, index)), batch(epoch, index))[1]
    prefetcher.batch(0, 0)
    deadline = time.monotonic() + 5
    while len(calls) < 1 + AHEAD and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert calls == [(0, index) for index in range(1 + AHEAD)]


def test_an_error_is_raised_where_its_batch_is_used(prefetcher):
    batch = prefetcher.sampler.batch

    def fail(epoch: int, index: int) -> Batch:
        if index == 2:
            raise OSError("the disk is gone")
        return batch(epoch, index)

    prefetcher.sampler.batch = fail
    prefetcher.batch(0, 0), prefetcher.batch(0, 1)
    for _ in range(3):  # again and again, without waiting for ever
        with pytest.raises(OSError, match="the disk is gone"):
            prefetcher.batch(0, 2)
    prefetcher.sampler.batch = batch
    prefetcher.batch(0, 3)


def test_batches_are_finished_in_the_thread():
    names: set[str] = set()

    def finish(batch: Batch) -> Batch:
        names.add(threading.current_thread().name)
        return batch._replace(tokens=batch.tokens + 1)

    prefetcher = Prefetcher(windows(), finish)
    assert torch.equal(prefetcher.batch(0, 0).tokens, windows().batch(0, 0).tokens + 1)
    prefetcher.close()
    assert names == {"weft-batches"}


@pytest.mark.parametrize("stop", [None, DivergedError, KeyboardInterrupt])
def test_training_leaves_no_thread_behind(monkeypatch, stop):
    monkeypatch.setattr(Loop, "asynchronous_devices", ("cpu",))
    loop, seen = small_loop(small_model(), rows=ROWS, max_steps=7, num_validations=1), []
    sampler = loop.batch_sampler

    def inspect(loop: Loop) -> None:
        seen.extend(threads())
        if stop is not None and loop.train_state.step == 3:
            raise stop("", "")

    if stop is None:
        loop.run(Notebook(), SilentCallback(inspect=inspect))
    else:
        with pytest.raises(stop):
            loop.run(Notebook(), SilentCallback(inspect=inspect))
    assert seen and not threads() and loop.batch_sampler is sampler


def test_a_run_with_prefetched_batches_equals_one_without(monkeypatch):
    def trained(devices: tuple[str, ...]) -> Loop:
        monkeypatch.setattr(Loop, "asynchronous_devices", devices)
        loop = small_loop(small_model(), rows=ROWS, max_steps=12, num_validations=1)
        loop.defers = False
        loop.run(Notebook(), SilentCallback())
        return loop

    plain, prefetched = trained(()), trained(("cpu",))
    assert all(map(torch.equal, weights(plain).values(), weights(prefetched).values()))
    assert plain.train_state.tokens == prefetched.train_state.tokens


# ---- batches of one shape


@pytest.mark.parametrize("sampler", [windows(), Streams(CORPUS, context_length=5, rows=ROWS)])
def test_padded_batches_have_one_shape_and_the_same_tokens(sampler):
    padded, shape = EqualShapes(sampler), sampler.largest_batch().tokens.shape
    plain = [sampler.batch(0, index).tokens for index in range(sampler.batches(0))]
    assert plain[-1].shape != shape  # there is something to pad
    for index, tokens in enumerate(plain):
        batch = padded.batch(0, index)
        assert batch.tokens.shape == batch.token_mask.shape == shape
        assert torch.equal(batch.tokens[batch.token_mask], tokens.flatten())
        assert not batch.tokens[~batch.token_mask].any()
    assert padded.batches(0) == sampler.batches(0) and padded.describe(0, 1) == sampler.describe(0, 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mixer", ["attention", "conv", "lstm"])
def test_padding_changes_no_loss_and_no_gradient(mixer, stream):
    plain, padded = (small_loop(small_model(mixer), rows=ROWS, stream=stream, max_steps=9) for _ in range(2))
    padded.batch_sampler = EqualShapes(padded.batch_sampler)
    last = plain.batch_sampler.batches(0) - 1
    results = []
    for loop in (plain, padded):
        total, count, tokens = loop.summed_gradients(loop.batch_sampler.batch(0, last))
        results.append((total.item(), count.item(), tokens.item(), [weight.grad for weight in loop.optimizers.weights]))
    assert results[0][:3] == pytest.approx(results[1][:3])
    for ours, theirs in zip(results[1][3], results[0][3], strict=True):
        torch.testing.assert_close(ours, theirs)


# ---- angles on a GPU


def test_angles_without_whole_turns_have_the_same_cosine_and_sine():
    frequencies = 10000.0 ** (-torch.arange(32) / 32)
    angle = angles(torch.tensor([[0, 1, 255, 1023, 131_071, 10_000_000]]), frequencies)
    reduced = remove_turns(angle)
    assert reduced.abs().max() <= torch.pi
    torch.testing.assert_close(reduced.float().cos().double(), angle.cos(), rtol=0, atol=3e-7)
    torch.testing.assert_close(reduced.float().sin().double(), angle.sin(), rtol=0, atol=3e-7)
