"""CTC equals brute force over all paths: losses, next-label distributions, prefix states, alignments, beam search."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from weft.decode.beam import BeamOptions, beam_search
from weft.nn import ctc
from weft.nn.ctc import CTCPrefix
from weft.nn.state import compact, expand_to_beams, join, select, where

BLANK = 2
LENGTHS = (5, 3, 4, 1)
Table = dict[tuple[int, ...], float]  # probability of each label sequence


def merge(path: tuple[int, ...], blank: int = BLANK) -> tuple[int, ...]:
    """The labels of a path."""
    return tuple(label for label, _ in groupby(path) if label != blank)


def sequences(log_probs: Tensor, length: int) -> Table:
    """The probability of every label sequence, summed over all paths of a row (S, V)."""
    table: Table = defaultdict(float)
    for path in product(range(log_probs.size(1)), repeat=length):
        table[merge(path)] += math.exp(sum(float(log_probs[frame, label]) for frame, label in enumerate(path)))
    return table


def starts_with(labels: tuple[int, ...], prefix: tuple[int, ...]) -> bool:
    return labels[: len(prefix)] == prefix


def next_probs(table: Table, prefix: tuple[int, ...], vocab_size: int) -> list[float]:
    """P(next label | prefix); that of the end has the index of the blank."""
    total = sum(value for labels, value in table.items() if starts_with(labels, prefix))
    probs = [
        sum(value for labels, value in table.items() if starts_with(labels, (*prefix, label))) for label in range(vocab_size)
    ]
    probs[BLANK] = table.get(prefix, 0.0)
    return [prob / total for prob in probs]


@pytest.fixture(scope="module")
def log_probs() -> Tensor:
    return (2 * torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(1)).double()).log_softmax(-1)


@pytest.fixture(scope="module")
def mask() -> Tensor:
    return torch.arange(5) < torch.tensor(LENGTHS)[:, None]


@pytest.fixture(scope="module")
def tables(log_probs: Tensor) -> list[Table]:
    return [sequences(row, length) for row, length in zip(log_probs, LENGTHS, strict=True)]


TARGETS = [(), (0,), (1,), (0, 1), (0, 0), (1, 1), (0, 1, 0), (0, 0, 1), (0, 0, 0), (1, 0, 1, 0), (0, 1, 0, 1, 0), (1, 1, 1, 1)]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_loss_equals_brute_force(log_probs, mask, tables, target):
    """Also of repeated labels, of rows with padding, and of targets without a path."""
    targets = torch.tensor([[*target, 0, 1]] * 4)
    padded = torch.where(mask[..., None], log_probs, 7.0)
    losses = ctc.ctc_nll(padded, mask, targets, torch.full((4,), len(target)), blank=BLANK)
    expected = [-math.log(table[target]) if table[target] else math.inf for table in tables]
    assert losses.tolist() == pytest.approx(expected, abs=1e-9)
    needed = ctc.frames_needed(np.array(target, dtype=np.int64))
    assert [length >= needed for length in LENGTHS] == [math.isfinite(value) for value in expected]


def test_a_target_without_a_path_has_no_gradient(log_probs, mask):
    """Speed perturbation may make a recording too short: its gradient would otherwise be NaN."""
    logits = log_probs.clone().requires_grad_()
    losses = ctc.ctc_nll(logits.log_softmax(-1), mask, torch.tensor([[0, 0, 1]] * 4), torch.tensor([3] * 4), blank=BLANK)
    assert losses.isinf().tolist() == [False, True, False, True]
    losses.nan_to_num(posinf=0.0).sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[[1, 3]].abs().sum() == 0 and logits.grad[[0, 2]].abs().sum() > 0.1


def test_gradients_of_the_loss_equal_numerical_ones(log_probs, mask):
    def loss(logits: Tensor) -> Tensor:
        return ctc.ctc_nll(logits.log_softmax(-1), mask, torch.tensor([[0], [1], [1], [0]]), torch.ones(4).long(), blank=BLANK)

    assert torch.autograd.gradcheck(loss, (log_probs.clone().requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_loss_is_computed_in_single_precision_at_least(log_probs, mask, dtype):
    losses = ctc.ctc_nll(log_probs.to(dtype), mask, torch.tensor([[0]] * 4), torch.ones(4).long(), blank=BLANK)
    assert losses.dtype == torch.float32


@pytest.mark.parametrize("labels, expected", [([], 0), ([1], 1), ([1, 1], 3), ([1, 2, 2, 2, 1], 7)])
def test_frames_needed(labels, expected):
    assert ctc.frames_needed(np.array(labels, dtype=np.int64)) == expected


def test_best_path_merges_labels_and_removes_blanks():
    path = torch.tensor([[0, 0, 2, 0, 1, 1], [2, 2, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
    scores, mask = torch.nn.functional.one_hot(path, 3).float(), torch.arange(6) < torch.tensor([6, 5, 1])[:, None]
    assert ctc.best_path(scores, mask, blank=BLANK) == [[0, 0, 1], [1], [1]]


# ---- prefixes


def read(state: CTCPrefix, labels: tuple[int, ...]) -> CTCPrefix:
    rows = len(state.last)
    for label in labels:
        state = ctc.read_label(state, torch.full((rows,), label), blank=BLANK)
    return state


@pytest.mark.parametrize("prefix", [target for target in TARGETS if len(target) < 4], ids=str)
def test_next_labels_equal_brute_force(log_probs, mask, tables, prefix):
    padded = torch.where(mask[..., None], log_probs, 7.0)
    state = read(ctc.start_prefix(padded, mask, blank=BLANK), prefix)
    scores = ctc.next_label(state, blank=BLANK)
    assert not scores.isnan().any()
    assert scores.exp().sum(1).tolist() == pytest.approx([1] * 4, abs=1e-6)
    for row, table in enumerate(tables):
        if any(starts_with(labels, prefix) and value for labels, value in table.items()):
            expected = next_probs(table, prefix, 3)
            assert scores[row].exp().tolist() == pytest.approx(expected, abs=1e-6)
            assert scores[row].isinf().tolist() == [prob == 0 for prob in expected]
    lengths = torch.full((4,), len(prefix))
    losses = ctc.ctc_nll(log_probs, mask, torch.tensor([[*prefix, 0]] * 4), lengths, blank=BLANK)
    possible = losses.isfinite()
    assert state.total[possible].tolist() == pytest.approx((-losses[possible]).tolist(), abs=1e-9)
    assert (state.total[~possible] < -1e8).all()


def test_the_chain_rule_gives_the_loss(log_probs, mask):
    """The log-probabilities of labels one after another, and of the end, add up to -ctc_nll."""
    target = (1, 1, 0)
    state, total = ctc.start_prefix(log_probs, mask, blank=BLANK), torch.zeros(4)
    for label in (*target, BLANK):
        total = total + ctc.next_label(state, blank=BLANK)[:, label]
        state = ctc.read_label(state, torch.full((4,), label), blank=BLANK)
    losses = ctc.ctc_nll(log_probs, mask, torch.tensor([target] * 4), torch.full((4,), 3), blank=BLANK)
    assert total[[0, 2]].tolist() == pytest.approx((-losses[[0, 2]]).tolist(), abs=1e-5)


def test_long_inputs_keep_their_precision():
    """A thousand frames: probabilities far below what float64 can represent."""
    logits = 6 * torch.randn(2, 1000, 5, generator=torch.Generator().manual_seed(2))
    log_probs, mask = logits.log_softmax(-1), torch.arange(1000) < torch.tensor([[1000], [700]])
    labels = torch.randint(0, 4, (2, 60), generator=torch.Generator().manual_seed(3))
    state, total = ctc.start_prefix(log_probs, mask, blank=4), torch.zeros(2, dtype=torch.float64)
    for step in range(60):
        scores = ctc.next_label(state, blank=4)
        assert scores.isfinite().all()
        total += scores.gather(1, labels[:, step, None]).squeeze(1)
        state = ctc.read_label(state, labels[:, step], blank=4)
    losses = ctc.ctc_nll(log_probs.double(), mask, labels, torch.tensor([60, 60]), blank=4)
    assert state.total.tolist() == pytest.approx((-losses).tolist(), rel=1e-9)
    total += ctc.next_label(state, blank=4)[:, 4]
    assert total.tolist() == pytest.approx((-losses).tolist(), rel=1e-5)


def as_prefix(state: Any) -> CTCPrefix:
    """States that were selected or joined are plain tuples."""
    return CTCPrefix(*state)


def assert_same_future(state: Any, rows: list[tuple[Tensor, tuple[int, ...]]]) -> None:
    """Each row of a state goes on as a state of its own recording (S, V), with these labels read, does."""
    joined = as_prefix(state)
    alone = [read(ctc.start_prefix(probs[None], torch.ones(1, len(probs)).bool(), blank=BLANK), past) for probs, past in rows]
    for label in (0, 0, 1):
        expected = torch.cat([ctc.next_label(row, blank=BLANK) for row in alone])
        torch.testing.assert_close(ctc.next_label(joined, blank=BLANK), expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(joined.total, torch.cat([row.total for row in alone]), atol=1e-9, rtol=0)
        joined = ctc.read_label(joined, torch.full((len(rows),), label), blank=BLANK)
        alone = [ctc.read_label(row, torch.tensor([label]), blank=BLANK) for row in alone]


@pytest.fixture(scope="module")
def recordings() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(length, 3, generator=generator).double().log_softmax(-1) for length in (9, 12, 7, 15)]


def start(recordings: list[Tensor]) -> CTCPrefix:
    """One state of several recordings, padded."""
    lengths = torch.tensor([len(probs) for probs in recordings])
    padded = torch.nn.utils.rnn.pad_sequence(recordings, batch_first=True, padding_value=3.0)
    return ctc.start_prefix(padded, torch.arange(padded.size(1)) < lengths[:, None], blank=BLANK)


def test_a_state_survives_selection(recordings):
    state = select(read(start(recordings), (1,)), torch.tensor([2, 0, 2]))
    assert_same_future(state, [(recordings[row], (1,)) for row in (2, 0, 2)])


def test_rows_of_different_lengths_can_be_joined(recordings):
    a, b, c = recordings[:3]
    state = join(join(read(start([a]), (0, 1)), start([b])), read(start([c]), (1, 1)))
    assert_same_future(state, [(a, (0, 1)), (b, ()), (c, (1, 1))])


def test_columns_of_padding_can_be_removed(recordings):
    """After the longest recordings are gone, the state has fewer columns, before and after the next label."""
    state = compact(select(read(start(recordings), (1,)), torch.tensor([0, 2])))
    assert as_prefix(state).frames.parts[0].size(1) == 9
    assert_same_future(state, [(recordings[0], (1,)), (recordings[2], (1,))])
    assert_same_future(join(state, start(recordings[3:])), [*((recordings[row], (1,)) for row in (0, 2)), (recordings[3], ())])
    older = compact(select(state, torch.tensor([1])))
    assert_same_future(join(older, start(recordings[:1])), [(recordings[2], (1,)), (recordings[0], ())])


def test_hypotheses_of_a_beam_share_the_frames(recordings):
    state = read(start(recordings[:2]), (0,))
    beams = as_prefix(expand_to_beams(state, torch.tensor([0, 0, 0, 1, 1, 1]), None))
    assert beams.frames.parts[0].size(0) == 2 and len(beams.last) == 6
    beams = ctc.read_label(beams, torch.tensor([0, 1, 0, 1, 1, 0]), blank=BLANK)
    pasts = [(recordings[row // 3], (0, label)) for row, label in enumerate((0, 1, 0, 1, 1, 0))]
    assert_same_future(beams, pasts)
    kept = expand_to_beams(tuple(beams), torch.tensor([5, 3, 3]), torch.tensor([1]))
    assert_same_future(kept, [pasts[5], pasts[3], pasts[3]])


def test_rows_of_two_states_can_be_mixed(recordings):
    before = read(start(recordings[:2]), (0,))
    after = read(before, (1,))
    mixed = where(tuple(after[1:]), tuple(before[1:]), torch.tensor([True, False]))
    assert_same_future((before.frames, *mixed), [(recordings[0], (0, 1)), (recordings[1], (0,))])


# ---- alignments


def best_alignment(log_probs: Tensor, labels: tuple[int, ...]) -> float:
    """The log-probability of the most probable path of the labels; -inf if there is none."""
    scores = [
        sum(float(log_probs[frame, label]) for frame, label in enumerate(path))
        for path in product(range(log_probs.size(1)), repeat=len(log_probs))
        if merge(path) == labels
    ]
    return max(scores, default=-math.inf)


@pytest.mark.parametrize("labels", TARGETS[1:], ids=str)
def test_the_alignment_is_the_most_probable_path(log_probs, labels):
    for row in log_probs:
        best, spans = best_alignment(row, labels), ctc.align(row, list(labels), blank=BLANK)
        if best == -math.inf:
            assert spans == []
            continue
        path = [BLANK] * len(row)
        for span in spans:
            assert set(path[span.start : span.end]) == {BLANK}, "spans overlap"
            path[span.start : span.end] = [span.label] * (span.end - span.start)
            mean = row[span.start : span.end, span.label].mean()
            assert span.log_prob == pytest.approx(float(mean))
        assert merge(tuple(path)) == labels
        assert sum(float(row[frame, label]) for frame, label in enumerate(path)) == pytest.approx(best)


def test_no_labels_have_no_spans(log_probs):
    assert ctc.align(log_probs[0], [], blank=BLANK) == []


# ---- beam search


class CTCModel:
    """The model of beam search whose next token is that of CTC; <s> is read first."""

    max_positions, vocabulary, bos = None, "ab12cd34" * 8, 3

    def bytes_per_row(self, tokens: int, state: Any = None) -> int:
        return 1

    def _scores(self, state: CTCPrefix) -> Tensor:
        scores = ctc.next_label(state, blank=BLANK)
        return torch.cat([scores, scores.new_full((len(scores), 1), -torch.inf)], 1)  # <s> is never next

    def start(self, prompt: Tensor, token_mask: Any = None, state: Any = None) -> tuple[Tensor, Any]:
        return self._scores(as_prefix(state)), state

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        after = ctc.read_label(as_prefix(state), token.clamp_max(BLANK), blank=BLANK)
        return self._scores(after), after


def test_a_large_beam_finds_the_most_probable_labels(log_probs, mask, tables):
    options = BeamOptions(beam_size=64, max_new_tokens=6, eos_id=BLANK, length_penalty=0.0, n_best=4)
    state = ctc.start_prefix(log_probs, mask, blank=BLANK)
    found = beam_search(CTCModel(), torch.full((4, 1), 3), options=options, state=state)  # type: ignore[arg-type]
    for hypotheses, table in zip(found, tables, strict=True):
        expected = sorted((value for value in table.values() if value), reverse=True)[:4]
        for hypothesis, prob in zip(hypotheses, expected, strict=True):
            assert hypothesis.tokens[-1] == BLANK
            assert table[tuple(hypothesis.tokens[:-1])] == pytest.approx(prob)
            assert hypothesis.log_prob == pytest.approx(math.log(prob), abs=1e-5)
