"""Connectionist temporal classification, CTC (Graves et al. 2006): a distribution over label sequences from a distribution over
labels and a blank at each frame. A path has one label per frame; repeated labels are merged, then blanks are removed.

`CTCPrefix` makes it a left-to-right model: P(next label | labels so far) = P(prefix + label) / P(prefix), where P(prefix) sums
over all label sequences that begin with it (Graves 2012, Watanabe et al. 2017). So beam search and sampling work with CTC as
with any decoder. The end of a sequence has the index of the blank: CTC never emits it.

Shapes: B rows, S frames, V labels (with the blank), T labels of a target.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from weft.nn.state import SharedState, where

IMPOSSIBLE = -1e9  # log-probability; finite, so that differences are defined


def ctc_nll(log_probs: Tensor, mask: Tensor, targets: Tensor, target_lengths: Tensor, *, blank: int) -> Tensor:
    """-log P(target) of each row, (B,); infinite if the target needs more frames than there are.

    Args:
        log_probs: (B, S, V)
        mask: (B, S), False on padding, which is at the end of rows.
        targets: int64 (B, T) without blanks.
        target_lengths: int64 (B,)
    """
    frames, precise = mask.sum(1), log_probs if log_probs.dtype == torch.float64 else log_probs.float()
    # `zero_infinity`: otherwise the gradients of a target without a path are NaN, even if its loss is not used
    losses = F.ctc_loss(
        precise.transpose(0, 1), targets, frames, target_lengths, blank=blank, reduction="none", zero_infinity=True
    )
    is_label = torch.arange(1, targets.size(1), device=targets.device) < target_lengths[:, None]
    num_repeats = ((targets[:, 1:] == targets[:, :-1]) & is_label).sum(1)
    return losses.masked_fill(target_lengths + num_repeats > frames, torch.inf)


def frames_needed(labels: np.ndarray) -> int:
    """The minimum number of frames of a label sequence (T,): one per label, and a blank between equal ones."""
    return len(labels) + int((labels[1:] == labels[:-1]).sum())


def best_path(log_probs: Tensor, mask: Tensor, *, blank: int) -> list[list[int]]:
    """Greedy decoding: the most probable label of each frame, merged."""
    path = log_probs.argmax(-1).masked_fill(~mask, blank)
    keeps = path != blank
    keeps[:, 1:] &= path[:, 1:] != path[:, :-1]
    return [row[keep].tolist() for row, keep in zip(path, keeps, strict=True)]


# ---- prefixes


class CTCPrefix(NamedTuple):
    """The state of CTC as a left-to-right model, after the labels read so far. Forward probabilities are float64."""

    frames: SharedState  # log_probs float64 (B, S, V), mask (B, S)
    label_before: Tensor  # (B, S): log P(labels so far, the path ends with the last label) before each frame
    blank_before: Tensor  # (B, S): the same, the path ends with a blank
    total: Tensor  # (B,): log P(exactly the labels so far)
    last: Tensor  # int64 (B,): the last label, -1 before the first


def _shift(values: Tensor, first: float) -> Tensor:
    """The value before each frame, (B, S)."""
    return F.pad(values[:, :-1], (1, 0), value=first)


def _last_valid(values: Tensor, mask: Tensor) -> Tensor:
    """The value at the last frame of each row, (B,)."""
    return values.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)


def start_prefix(log_probs: Tensor, mask: Tensor, *, blank: int) -> CTCPrefix:
    """The state before the first label."""
    frames = SharedState((log_probs.double(), mask))
    blanks = frames.parts[0][..., blank].cumsum(1)
    nothing = torch.full_like(blanks, IMPOSSIBLE)
    last = torch.full(mask.shape[:1], -1, dtype=torch.long, device=mask.device)
    return CTCPrefix(frames, nothing, _shift(blanks, 0.0), _last_valid(blanks, mask), last)


def _rows(state: CTCPrefix) -> tuple[Tensor, Tensor, int]:
    """log_probs (A, S, V), mask (A, S), and the number K of rows per source: of a beam search, K rows share the frames."""
    log_probs, mask = state.frames.parts
    return log_probs, mask, len(state.last) // len(mask)


def _arrivals(state: CTCPrefix, repeated: Tensor) -> Tensor:
    """log P(labels so far, and the path may go on with a new label) before each frame, (B, S). A label that repeats the last
    one (`repeated`, (B,)) needs a blank between them."""
    frames = state.frames.parts[1].size(1)  # columns of padding may have been removed
    label, blank = state.label_before[:, :frames], state.blank_before[:, :frames]
    return torch.logaddexp(blank, label.masked_fill(repeated[:, None], IMPOSSIBLE))


def next_label(state: CTCPrefix, *, blank: int) -> Tensor:
    """The log-probability of each label after the ones read so far, float32 (B, V); that of the end has the index `blank`. A
    label for which too few frames are left has -inf; after labels that have no path, only the end is possible."""
    log_probs, mask, k = _rows(state)
    sources, frames, labels = log_probs.shape
    probs = log_probs.exp()

    def sum_over_frames(arrivals: Tensor) -> Tensor:
        """log sum_t exp(arrivals(t)) p(label, t), (A, K, V): a product of matrices, scaled by the largest arrival."""
        arrivals = arrivals.view(sources, k, frames).masked_fill(~mask[:, None], IMPOSSIBLE)
        scale = arrivals.amax(-1, keepdim=True)
        return ((arrivals - scale).exp() @ probs).log().clamp_min(IMPOSSIBLE) + scale

    no_repeat = torch.zeros_like(state.last, dtype=torch.bool)
    scores = sum_over_frames(_arrivals(state, no_repeat)).view(-1, labels)
    repeats = sum_over_frames(_arrivals(state, ~no_repeat)).view(-1, labels)
    is_last = F.one_hot(state.last.clamp_min(0), labels).bool() & (state.last >= 0)[:, None]
    scores = torch.where(is_last, repeats, scores)
    scores[:, blank] = state.total
    impossible = scores < IMPOSSIBLE / 2
    impossible[:, blank] &= ~impossible.all(1)
    return scores.masked_fill(impossible, -torch.inf).log_softmax(-1).float()


def read_label(state: CTCPrefix, label: Tensor, *, blank: int) -> CTCPrefix:
    """The state after one more label per row, (B,). The recursions over frames

        label(t) = p(label, t) (label(t-1) + arrivals(t)),   blank(t) = p(blank, t) (blank(t-1) + label(t-1))

    are linear, so they are cumulative sums of the inputs divided by the cumulative product of the factors."""
    log_probs, mask, k = _rows(state)
    frames = log_probs.size(1)
    chosen = log_probs.gather(2, label.view(-1, 1, k).expand(-1, frames, k)).transpose(1, 2).reshape(-1, frames)
    blanks = log_probs[..., blank].repeat_interleave(k, 0)

    def solve(factors: Tensor, inputs: Tensor) -> Tensor:
        product = factors.cumsum(1)
        return product + torch.logcumsumexp(inputs - _shift(product, 0.0), 1)

    ends_in_label = solve(chosen, _arrivals(state, label == state.last))
    ends_in_blank = solve(blanks, _shift(ends_in_label, IMPOSSIBLE))
    total = _last_valid(torch.logaddexp(ends_in_label, ends_in_blank), mask.repeat_interleave(k, 0))
    return CTCPrefix(state.frames, _shift(ends_in_label, IMPOSSIBLE), _shift(ends_in_blank, IMPOSSIBLE), total, label)


def read_in_rows(before: CTCPrefix, after: CTCPrefix, mask: Tensor) -> CTCPrefix:
    """The state `after` a label in the rows where `mask` (B,) is True, and `before` it in the others."""
    frames = after.label_before.size(1)  # columns of padding may have been removed
    cropped = before._replace(label_before=before.label_before[:, :frames], blank_before=before.blank_before[:, :frames])
    return CTCPrefix(before.frames, *where(tuple(after[1:]), tuple(cropped[1:]), mask))


# ---- alignments


class LabelSpan(NamedTuple):
    """The frames of a label in an alignment."""

    label: int
    start: int
    end: int  # after the last frame
    log_prob: float  # mean over the frames


def align(log_probs: Tensor, labels: list[int], *, blank: int) -> list[LabelSpan]:
    """The frames of each label on the most probable path of `labels`, given log_probs (S, V); [] if there is no path."""
    scores = log_probs.detach().double().cpu().numpy()
    num_frames, num_states = len(scores), 2 * len(labels) + 1
    states = np.full(num_states, blank)
    states[1::2] = labels
    # a path may skip the blank between two different labels
    skips = np.zeros(num_states, dtype=bool)
    skips[2:] = (states[2:] != blank) & (states[2:] != states[:-2])
    best = np.full(num_states, -np.inf)
    best[:2] = scores[0, states[:2]]
    moves = np.zeros((num_frames, num_states), dtype=np.int8)  # states that the path advanced by
    for frame in range(1, num_frames):
        from_one, from_two = np.full(num_states, -np.inf), np.full(num_states, -np.inf)
        from_one[1:] = best[:-1]
        from_two[2:] = np.where(skips[2:], best[:-2], -np.inf)
        choices = np.stack([best, from_one, from_two])
        moves[frame] = choices.argmax(0)
        best = choices.max(0) + scores[frame, states]
    state = num_states - 1 if num_states == 1 or best[-1] >= best[-2] else num_states - 2
    if not np.isfinite(best[state]):
        return []
    path = np.zeros(num_frames, dtype=np.int64)
    for frame in range(num_frames - 1, -1, -1):
        path[frame] = state
        state -= int(moves[frame, state])  # not an int8, which ends at 127
    spans = []
    for number, label in enumerate(labels):
        frames = np.flatnonzero(path == 2 * number + 1)
        spans.append(LabelSpan(label, int(frames[0]), int(frames[-1]) + 1, float(scores[frames, label].mean())))
    return spans
