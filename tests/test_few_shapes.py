"""Batches in few shapes: padding is little and counts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seq2seq_runs import Seq2SeqRuns, seq2seq_run_file
from small_runs import SilentCallback, make_text, train_here
from test_denoising import denoising_run_file
from test_seq2seq_batching import like_text, rows_of
from toy_seq2seq import GRID, VARIANTS, build, sources, targets

from weft.data import few_shapes
from weft.data.few_shapes import ROW_STEP, FewShapes, Paddable, find_shapes, positions
from weft.nn.experts import expert_layers
from weft.tasks.encoder_decoder.pair_batch import PairBatch
from weft.tasks.encoder_decoder.pair_objective import PairObjective
from weft.tasks.seq2seq.batching import Pairs
from weft.training import neural
from weft.training.data_parallel import Replica

NAMES = ["lstm/lstm/multiplicative-feeding", "gru/gru-reset-before/additive-before", "attention/attention/scaled-dot"]
NAMES += ["conv/lstm/dot-after", "rnn/rnn/none", "copying-feeding", "attention/attention/none"]


def pair_batch() -> PairBatch:
    source, source_mask = sources(4, 7, 1)
    tokens, token_mask = targets(3, 6), torch.ones(3, 6, dtype=torch.bool)
    token_mask[1, 3:] = False
    return PairBatch(source, source_mask, tokens, token_mask)


def loss_and_gradients(model: Any, batch: PairBatch) -> tuple[Any, list[torch.Tensor]]:
    objective = PairObjective()
    objective.smoothing = 0.1
    loss = objective.loss(model, batch, None)
    gradients = torch.autograd.grad(loss.total, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return loss, list(gradients)


# ---- padding


def test_padded_pairs_in_full() -> None:
    batch = PairBatch(
        torch.tensor([[5, 2]]), torch.tensor([[True, True]]), torch.tensor([[1, 6, 2]]), torch.tensor([[True, True, True]])
    )
    assert batch.sizes() == (1, 2, 3)
    padded = batch.padded((2, 3, 4))
    assert padded.source.tolist() == [[5, 2, 0], [0, 0, 0]]
    assert padded.source_mask.tolist() == [[True, True, False], [True, False, False]]
    assert padded.tokens.tolist() == [[1, 6, 2, 0], [0, 0, 0, 0]]
    assert padded.token_mask.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert isinstance(batch, Paddable) and padded.sizes() == (2, 3, 4)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch.padded((1, 2, 3)), batch, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_neither_loss_nor_gradients(name: str) -> None:
    model = build(name)
    assert name in {**GRID, **VARIANTS} and not expert_layers(model)
    loss, gradients = loss_and_gradients(model, pair_batch())
    padded_loss, padded_gradients = loss_and_gradients(model, pair_batch().padded((5, 9, 8)))
    assert int(padded_loss.count) == int(loss.count) == 12
    torch.testing.assert_close(padded_loss.total, loss.total, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(padded_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


# ---- shapes


def test_shapes_cover_all_batches_and_are_few() -> None:
    rng = np.random.default_rng(0)
    widths = rng.integers(3, 40, size=(300, 2))
    sizes = np.concatenate([400 // widths.max(1, keepdims=True), widths], axis=1)
    limits = widths.max(0)
    previous = None
    for max_shapes in (4, 16, 32):
        shapes = find_shapes(sizes, limits, max_shapes=max_shapes)
        assert len(shapes) == max_shapes
        assert (shapes[:, 0] % ROW_STEP == 0).all() and (shapes[:, 1:] <= limits).all()
        assert (np.diff(positions(shapes)) >= 0).all()
        covers = (shapes[None] >= sizes[:, None]).all(2)
        assert covers.any(1).all()
        total = positions(shapes[covers.argmax(1)]).sum()
        assert previous is None or total < previous
        previous = total


def test_two_shapes_by_hand() -> None:
    sizes = np.array([[8, 10, 10]] * 5 + [[8, 11, 10]] * 5 + [[16, 4, 4]] * 5)
    assert find_shapes(sizes, np.array([11, 10]), max_shapes=2).tolist() == [[16, 4, 4], [8, 11, 10]]
    assert find_shapes(sizes, np.array([11, 10]), max_shapes=5).tolist() == [[16, 4, 4], [8, 10, 10], [8, 11, 10]]


def test_very_many_sizes_are_rounded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_shapes, "MAX_CLUSTERS", 20)
    sizes = np.random.default_rng(0).integers(1, 200, size=(500, 3))
    shapes = find_shapes(sizes, np.array([200, 200]), max_shapes=8)
    assert len(shapes) == 8 and (shapes[None] >= sizes[:, None]).all(2).any(1).all()


def test_the_sampler_has_the_same_examples_in_few_shapes() -> None:
    plain = Pairs(*like_text(800), batch_tokens=512, seed=1)
    sampler = FewShapes(plain, max_shapes=12)
    shapes = set()
    for epoch in range(3):
        assert sampler.batches(epoch) == plain.batches(epoch)
        for index in range(plain.batches(epoch)):
            batch, padded = plain.batch(epoch, index), sampler.batch(epoch, index)
            shapes.add(padded.sizes())
            rows = rows_of(padded)
            assert rows[: len(batch.source)] == rows_of(batch)
            assert all(row == ([0], [0]) for row in rows[len(batch.source) :])
            assert int(padded.token_mask[:, 1:].sum()) == int(batch.token_mask[:, 1:].sum())
            assert torch.equal(padded.source, sampler.batch(epoch, index).source)
    assert len(shapes) <= 12
    assert (sampler.rows, sampler.resets_state(3)) == (plain.rows, True)
    assert sampler.describe(1, 2) == plain.describe(1, 2)
    largest = sampler.largest_batch()
    assert all(ours >= theirs for ours, theirs in zip(largest.sizes(), plain.largest_batch().sizes(), strict=True))


def test_a_batch_that_no_shape_covers_gets_rows_alone() -> None:
    sampler = FewShapes(Pairs(*like_text(100), batch_tokens=128, seed=1))
    rows = int(sampler.shapes[:, 0].max()) + 1
    assert sampler.shape_of((rows, 3, 4)) == [-(-rows // ROW_STEP) * ROW_STEP, 3, 4]


def test_a_batch_beyond_the_largest_is_not_truncated() -> None:
    """Noise can make a text longer than the longest one."""
    plain = Pairs(*like_text(100), batch_tokens=128, seed=1)
    sampler = FewShapes(plain)
    widths = [int(limit) + 3 for limit in sampler.limits]
    assert sampler.shape_of((1, *widths)) == [ROW_STEP, *widths]
    sizes = np.array([[8, 5, 6], [8, 9, 9], [7, 3, 4]])
    assert (find_shapes(sizes, np.array([4, 4]), max_shapes=1) == [[8, 9, 9]]).all()


# ---- training


def use_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad as on a GPU, but record nothing."""
    monkeypatch.setattr(neural, "can_record", lambda *parts, **options: True)
    monkeypatch.setattr(neural, "has_memory", lambda *parts: True)
    monkeypatch.setattr(neural, "CudaRecorder", lambda device: None)
    monkeypatch.setattr(neural, "GraphedReplica", lambda module, weights, recorder, on_failure: Replica(module))


@pytest.mark.parametrize("model", [pytest.param("luong", marks=pytest.mark.slow), "transformer"])
def test_training_in_few_shapes_is_the_same_without_dropout(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, padding changes the random numbers of other positions."""
    pairs = Seq2SeqRuns(tmp_path).pairs
    values = seq2seq_run_file(pairs, model, "model.dropout=0", "train.max_steps=8", "train.lr=0.001", "train.ema_decay=0")
    train_here(values, tmp_path / "plain", plain := SilentCallback())
    use_few_shapes(monkeypatch)
    train_here(values, tmp_path / "padded", padded := SilentCallback())
    assert padded.losses == pytest.approx(plain.losses, rel=1e-4)


def test_denoising_in_few_shapes_is_the_same_without_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = make_text(tmp_path / "text.txt")
    options = ["model.dropout=0", "train.max_steps=6", "train.num_validations=1", "train.lr=0.001"]
    values = denoising_run_file(text, *options, model="lstm")
    train_here(values, tmp_path / "plain", plain := SilentCallback())
    use_few_shapes(monkeypatch)
    train_here(values, tmp_path / "padded", padded := SilentCallback())
    assert padded.losses == pytest.approx(plain.losses, rel=1e-4)


def test_learned_positions_are_not_exceeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_shapes(monkeypatch)
    values = seq2seq_run_file(Seq2SeqRuns(tmp_path).pairs, "learned", "data.max_length=8", "train.max_steps=4")
    train_here(values, tmp_path / "run", callback := SilentCallback())
    assert len(callback.losses) == 4
