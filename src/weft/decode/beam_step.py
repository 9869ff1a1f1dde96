"""One step of beam search over a batch of sentences, each with its own options.

Prefixes and finished hypotheses are right-aligned, because sentences enter and leave the batch between steps and have generated
different numbers of tokens.

Shapes: A active sentences, K beams per sentence (1 at first), M candidates, N finished hypotheses, T sequence length, V
vocabulary size, X banned tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.decode.logits_processors import NAN_PROBS, NO_TOKEN
from weft.errors import ModelError

BLOCK_SIZE = 64  # tokens per block of a large vocabulary
MIN_BLOCKS = 8  # a vocabulary with fewer blocks is small
UNLIMITED = 2**62  # finished hypotheses of a sentence without patience


class BeamOptions(NamedTuple):
    beam_size: int
    max_new_tokens: int
    eos_id: int | None = None
    length_penalty: float = 0.0  # exponent on the length, >= 0
    n_best: int = 1
    min_new_tokens: int = 0  # number of tokens before EOS is allowed
    banned_tokens: Sequence[int] = ()  # tokens that are never generated
    # called with the sentence and the generated tokens of each hypothesis; returns whether each is finished
    finished: Callable[[list[int], list[list[int]]], list[bool]] | None = None
    patience: float | None = None  # stop after beam_size * patience finished hypotheses, >= 1; None: when none can be better

    @property
    def max_finished(self) -> int:
        """The number of finished hypotheses that ends the search."""
        if self.patience is None:
            return UNLIMITED
        return max(self.n_best, math.floor(self.beam_size * self.patience + 0.5))  # as in CTranslate2: half is rounded up


class Hypothesis(NamedTuple):
    tokens: list[int]  # generated tokens, including EOS, without the prompt
    score: float
    log_prob: float  # of the model: without logits processor and length penalty


class BeamEvent(NamedTuple):
    """One step of the search, for a progress callback."""

    sentences: list[int]  # (A,) ID of each sentence: in `beam_search`, its row in the prompt
    tokens: Tensor  # (A, M) candidates, best first
    parents: Tensor  # (A, M) the beam that each candidate extends
    scores: Tensor  # (A, M) sums of log-probabilities
    survivors: Tensor  # (A, K) the candidates that become the new beams


class Options(NamedTuple):
    """The options of all sentences, as tensors."""

    eos_ids: Tensor  # (A,), -1 without
    max_new_tokens: Tensor  # (A,)
    min_new_tokens: Tensor  # (A,)
    length_penalties: Tensor  # (A,) float64
    n_best: Tensor  # (A,)
    max_finished: Tensor  # (A,)
    banned_tokens: Tensor  # (A, X), padded with -1

    @classmethod
    def stack(cls, options: Sequence[BeamOptions], device: torch.device) -> Options:
        width = max(len(row.banned_tokens) for row in options)
        numbers = [
            (
                NO_TOKEN if row.eos_id is None else row.eos_id,
                row.max_new_tokens,
                row.min_new_tokens,
                row.n_best,
                row.max_finished,
                *row.banned_tokens,
                *[NO_TOKEN] * (width - len(row.banned_tokens)),
            )
            for row in options
        ]
        values = torch.tensor(numbers).to(device)
        eos_ids, longest, shortest, n_best, max_finished = values[:, :5].unbind(1)
        penalties = torch.tensor([row.length_penalty for row in options], dtype=torch.float64).to(device)
        return cls(eos_ids, longest, shortest, penalties, n_best, max_finished, values[:, 5:])

    def penalties(self, lengths: Tensor) -> Tensor:
        """What a sum of log-probabilities over each length (A,) is divided by, (A,)."""
        return lengths.double() ** self.length_penalties

    def banned(self, lengths: Tensor, *, some_are_short: bool) -> Tensor:
        """The tokens that cannot follow prefixes of these lengths (A,), (A, X): EOS as well, if they are too short."""
        if not some_are_short:
            return self.banned_tokens
        early_eos = self.eos_ids.masked_fill(lengths >= self.min_new_tokens, NO_TOKEN)
        return torch.cat([self.banned_tokens, early_eos.unsqueeze(1)], 1)


def join_tokens(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """Concatenate right-aligned tokens (A, N, T), padded to the same T."""
    width = max(first.size(2), second.size(2))
    return torch.cat([F.pad(part, (width - part.size(2), 0), value=NO_TOKEN) for part in (first, second)], dim)


class Lengths(NamedTuple):
    """The number of generated tokens of each sentence."""

    rows: Tensor  # (A,)
    longest: int

    def plus_one(self) -> Lengths:
        return Lengths(self.rows + 1, self.longest + 1)


class Beams(NamedTuple):
    """The unfinished hypotheses of each sentence."""

    # float64: in float32, a sum over hundreds of tokens is off in the fourth decimal, and near ties are ordered randomly
    sums: Tensor  # (A, K) of processed log-probabilities, -inf for an empty beam
    log_probs: Tensor  # (A, K) sums of the model's log-probabilities
    tokens: Tensor  # (A, K, T) prompt and generated tokens, right-aligned

    def generated(self, lengths: Lengths) -> Tensor:
        """The generated tokens of each beam, right-aligned, (A, K, longest)."""
        tokens = self.tokens[:, :, self.tokens.size(2) - lengths.longest :]
        column = torch.arange(lengths.longest, device=tokens.device)
        return tokens.masked_fill(column < (lengths.longest - lengths.rows).view(-1, 1, 1), NO_TOKEN)

    def join(self, other: Beams) -> Beams:
        """Concatenate the sentences, which have the same number of beams."""
        sums, log_probs = torch.cat([self.sums, other.sums]), torch.cat([self.log_probs, other.log_probs])
        return Beams(sums, log_probs, join_tokens(self.tokens, other.tokens, 0))


class Candidates(NamedTuple):
    """The beams of each sentence, extended by one token in the most probable ways."""

    sums: Tensor  # (A, M), best first
    log_probs: Tensor  # (A, M)
    tokens: Tensor  # (A, M)
    parents: Tensor  # (A, M)


class Finished(NamedTuple):
    """The best finished hypotheses of each sentence, best first; score -inf for empty slots."""

    scores: Tensor  # (A, N)
    log_probs: Tensor  # (A, N)
    tokens: Tensor  # (A, N, T) generated tokens, right-aligned
    counts: Tensor  # (A,) all that have finished, also those that were not among the N best

    @classmethod
    def empty(cls, sentences: int, n_best: int, device: torch.device) -> Finished:
        scores = torch.full((sentences, n_best), -math.inf, dtype=torch.float64, device=device)
        tokens = torch.empty(sentences, n_best, 0, dtype=torch.long, device=device)
        return cls(scores, scores, tokens, tokens.new_zeros(sentences))

    def add(self, scores: Tensor, log_probs: Tensor, tokens: Tensor) -> Finished:
        """Merge hypotheses (A, M), (A, M), (A, M, T) and keep the best N; a score of -inf is ignored."""
        best, index = best_first(torch.cat([self.scores, scores], 1), self.scores.size(1))
        all_tokens = join_tokens(self.tokens, tokens, 1)
        all_tokens = all_tokens.gather(1, index.unsqueeze(2).expand(-1, -1, all_tokens.size(2)))
        log_probs = torch.cat([self.log_probs, log_probs], 1).gather(1, index)
        return Finished(best, log_probs, all_tokens, self.counts + (scores > -math.inf).sum(1))

    def join(self, other: Finished) -> Finished:
        """Concatenate the sentences."""
        slots = max(self.scores.size(1), other.scores.size(1))
        first, second = self._with_slots(slots), other._with_slots(slots)
        scores, log_probs = torch.cat([first.scores, second.scores]), torch.cat([first.log_probs, second.log_probs])
        return Finished(
            scores, log_probs, join_tokens(first.tokens, second.tokens, 0), torch.cat([first.counts, second.counts])
        )

    def _with_slots(self, n_best: int) -> Finished:
        """The same with this many slots."""
        missing = n_best - self.scores.size(1)
        scores, log_probs = (F.pad(part, (0, missing), value=-math.inf) for part in (self.scores, self.log_probs))
        return Finished(scores, log_probs, F.pad(self.tokens, (0, 0, 0, missing), value=NO_TOKEN), self.counts)

    def hypotheses(self, n_best: Sequence[int]) -> list[list[Hypothesis]]:
        """The n best of each sentence."""
        rows = zip(self.tokens.tolist(), self.scores.tolist(), self.log_probs.tolist(), strict=True)
        return [
            [
                Hypothesis([token for token in tokens if token != NO_TOKEN], score, log_prob)
                for tokens, score, log_prob in zip(*(part[:count] for part in row), strict=True)
                if score > -math.inf
            ]
            for row, count in zip(rows, n_best, strict=True)
        ]


def check_numbers(finished: Finished, beams: Beams) -> None:
    """Reject NaN, which is sorted before every number and so is never missed."""
    if finished.scores.isnan().any() or beams.sums.isnan().any():
        raise ModelError("", NAN_PROBS)


def any_on_cpu(mask: Tensor) -> bool:
    """Whether any element is True. On other devices always True: to know would be a sync."""
    return mask.device.type != "cpu" or bool(mask.any())


def ban_(log_probs: Tensor, banned: Tensor) -> None:
    """Make the tokens `banned` of each row (B, X), padded with -1, impossible, in place."""
    if banned.size(1):
        # the minimum of the value and -inf, or +inf for padding: no sync to find out what is padding
        limits = torch.full_like(banned, math.inf, dtype=log_probs.dtype).masked_fill(banned != NO_TOKEN, -math.inf)
        log_probs.scatter_reduce_(1, banned.clamp(min=0), limits, "amin")


def best_first(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best of each row of (A, M) and their indices; of ties, the first. (`topk` orders ties in a way that depends on the
    number of columns, and so on the other sentences of the batch.)"""
    sorted_values, index = values.sort(dim=1, descending=True, stable=True)
    return sorted_values[:, :count], index[:, :count]


def best_totals(sums: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest sums[a, k] + values[a, k, v] of each sentence, best first, and their indices k * V + v: both (A, count), or
    fewer if there are fewer. sums (A, K), values (A * K, V)."""
    vocab_size = values.size(1)
    if values.device.type == "cpu" and vocab_size > MIN_BLOCKS * BLOCK_SIZE:
        return _best_in_blocks(sums, values, count)
    # top-k within each beam first: no addition over the whole vocabulary
    top_values, tokens = values.topk(min(count, vocab_size), dim=1)
    totals = sums.unsqueeze(2) + top_values.view(*sums.shape, -1)
    totals, index = best_first(totals.flatten(1), count)
    row_start = torch.arange(sums.size(1), device=sums.device).unsqueeze(1) * vocab_size
    return totals, (row_start + tokens.view(*sums.shape, -1)).flatten(1).gather(1, index)


def _best_in_blocks(sums: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`best_totals` for a large vocabulary: the best totals are in the `count` blocks of it with the largest maxima."""
    num_sentences, num_beams, vocab_size = *sums.shape, values.size(1)
    num_whole = vocab_size // BLOCK_SIZE
    maxima = values[:, : num_whole * BLOCK_SIZE].reshape(-1, num_whole, BLOCK_SIZE).amax(2)
    if num_whole * BLOCK_SIZE < vocab_size:
        maxima = torch.cat([maxima, values[:, num_whole * BLOCK_SIZE :].amax(1, keepdim=True)], 1)
    num_blocks = maxima.size(1)
    maxima = (sums.unsqueeze(2) + maxima.view(num_sentences, num_beams, num_blocks)).flatten(1)
    blocks = maxima.topk(min(count, maxima.size(1)), dim=1, sorted=False).indices.unsqueeze(2)  # (A, count, 1)
    beams, tokens = blocks // num_blocks, blocks % num_blocks * BLOCK_SIZE + torch.arange(BLOCK_SIZE)
    index = (beams * vocab_size + tokens).clamp_(max=num_beams * vocab_size - 1)  # the last block may be incomplete
    totals = (
        values.reshape(num_sentences, -1).gather(1, index.flatten(1)).view_as(index) + sums.gather(1, beams[:, :, 0])[..., None]
    )
    totals.masked_fill_(tokens >= vocab_size, -math.inf)
    best, best_index = totals.flatten(1).topk(count, dim=1)
    return best, index.flatten(1).gather(1, best_index)


def _expand_greedy(beams: Beams, log_probs: Tensor, processed: Tensor) -> Candidates:
    """The candidates of a single beam: its two best tokens, because the best one may be EOS; of ties, the first, which `topk`
    does not guarantee. Overwrites `processed`."""
    value, token = processed.max(1, keepdim=True)
    log_prob = log_probs.gather(1, token)
    second_value, second_token = processed.scatter_(1, token, -math.inf).max(1, keepdim=True)
    values, tokens = torch.cat([value, second_value], 1), torch.cat([token, second_token], 1)
    model_values = torch.cat([log_prob, log_probs.gather(1, second_token)], 1)
    return Candidates(beams.sums + values, beams.log_probs + model_values, tokens, torch.zeros_like(tokens))


def expand(beams: Beams, log_probs: Tensor, processed: Tensor, beam_size: int) -> Candidates:
    """The best candidates over all beams of a sentence: twice the beam size, because each beam may lose one to EOS. May
    overwrite `processed`."""
    if beam_size == 1:
        return _expand_greedy(beams, log_probs, processed)
    sums, index = best_totals(beams.sums, processed, 2 * beam_size)
    parents = index // processed.size(1)
    model_values = log_probs.reshape(len(sums), -1).gather(1, index)
    return Candidates(sums, beams.log_probs.gather(1, parents) + model_values, index % processed.size(1), parents)


def select_survivors(candidates: Candidates, eos_ids: Tensor, beam_size: int) -> Tensor:
    """The candidates that become the new beams, (A, K): the best ones that are not EOS."""
    sums = candidates.sums.masked_fill(candidates.tokens == eos_ids.unsqueeze(1), -math.inf)
    return best_first(sums, beam_size)[1]


def extend(beams: Beams, candidates: Candidates, survivors: Tensor, eos_ids: Tensor) -> Beams:
    """The beams after the step. A beam whose only continuation is EOS becomes empty."""
    parents, tokens = candidates.parents.gather(1, survivors), candidates.tokens.gather(1, survivors)
    past = beams.tokens.gather(1, parents.unsqueeze(2).expand(-1, -1, beams.tokens.size(2)))
    sums = candidates.sums.gather(1, survivors).masked_fill(tokens == eos_ids.unsqueeze(1), -math.inf)
    return Beams(sums, candidates.log_probs.gather(1, survivors), torch.cat([past, tokens.unsqueeze(2)], 2))


def add_ended(
    finished: Finished, beams: Beams, candidates: Candidates, options: Options, lengths: Lengths, *, beam_size: int
) -> Finished:
    """Add the candidates that are EOS, which beams of these lengths predict. Add the best beam, unfinished, of a sentence with
    no possible continuation and no finished hypothesis."""
    sums, log_probs, tokens, parents = (part[:, :beam_size] for part in candidates)
    is_eos = tokens == options.eos_ids.unsqueeze(1)
    is_stuck = (sums[:, :1] == -math.inf) & (finished.scores[:, :1] == -math.inf)
    if not any_on_cpu(torch.cat([is_eos, is_stuck], 1)):
        return finished
    past = beams.generated(lengths)
    outputs = past.gather(1, parents.unsqueeze(2).expand(-1, -1, past.size(2)))
    scores = sums / options.penalties(lengths.rows + 1).unsqueeze(1)
    stuck_scores = beams.sums[:, :1] / options.penalties(lengths.rows.clamp(min=1)).unsqueeze(1)
    return finished.add(
        torch.cat([scores.masked_fill(~is_eos, -math.inf), stuck_scores.masked_fill(~is_stuck, -math.inf)], 1),
        torch.cat([log_probs, beams.log_probs[:, :1]], 1),
        torch.cat([torch.cat([outputs, tokens.unsqueeze(2)], 2), F.pad(past[:, :1], (1, 0), value=NO_TOKEN)], 1),
    )


def add_beams(finished: Finished, beams: Beams, options: Options, lengths: Lengths, is_ended: Tensor) -> Finished:
    """Add the beams where `is_ended` (A, K) is True."""
    scores = (beams.sums / options.penalties(lengths.rows).unsqueeze(1)).masked_fill(~is_ended, -math.inf)
    return finished.add(scores, beams.log_probs, beams.generated(lengths))


def is_done(finished: Finished, beams: Beams, options: Options) -> Tensor:
    """Whether the search of each sentence ends, (A,): enough hypotheses have finished, or no beam can become better."""
    # log-probabilities only decrease: no hypothesis can finish with a better score than this
    bound = beams.sums.amax(1) / options.penalties(options.max_new_tokens)
    worst = finished.scores.gather(1, options.n_best.unsqueeze(1) - 1).squeeze(1)
    return ~(worst < bound) | (finished.counts >= options.max_finished)  # also if one of them is NaN, which is an error
