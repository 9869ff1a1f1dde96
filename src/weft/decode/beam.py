"""Batched beam search with cached states, for any incremental model.

A hypothesis is finished by the EOS token, by `max_new_tokens`, or by the `finished` callback. Its score is

    score = sum of processed log-probabilities / length ** length_penalty

where the length counts all generated tokens including EOS, as in Hugging Face and CTranslate2: a penalty of 0 ranks by the
sum, 1 by the mean per token. EOS is considered only among the `beam_size` best candidates of a step, as usual; considering
every possible EOS would favor short outputs. A beam size of 1 is greedy search: it takes the best token (of equally probable
ones, the first) and stops at the first EOS, whatever the length penalty.

Shapes: A active sentences, K beams per sentence (1 at first), M candidates, N n-best size, T sequence length, V vocabulary
size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import NAN_PROBS, NO_TOKEN, LogitsProcessor, ban_tokens, right_aligned
from weft.decode.options import check_length
from weft.errors import ModelError
from weft.nn.state import expand_to_beams, select

S = TypeVar("S")
BLOCK_SIZE = 64  # vocabulary entries per block of `_topk`


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


class Hypothesis(NamedTuple):
    tokens: list[int]  # generated tokens, including EOS, without the prompt
    score: float
    log_prob: float  # of the model: without logits processor and length penalty


class BeamEvent(NamedTuple):
    """One step of the search, for a progress callback."""

    sentences: list[int]  # (A,) row of each sentence in the prompt
    tokens: Tensor  # (A, M) candidates, best first
    parents: Tensor  # (A, M) the beam that each candidate extends
    scores: Tensor  # (A, M) sums of log-probabilities
    survivors: Tensor  # (A, K) the candidates that become the new beams


class _Beams(NamedTuple):
    """The unfinished hypotheses of each sentence."""

    # float64: in float32, a sum over hundreds of tokens is off in the fourth decimal, and near ties are ordered randomly
    sums: Tensor  # (A, K) of processed log-probabilities, -inf for an empty beam
    log_probs: Tensor  # (A, K) sums of the model's log-probabilities
    tokens: Tensor  # (A, K, T) prompt and generated tokens, right-aligned


class _Candidates(NamedTuple):
    """The beams of each sentence, extended by one token in the most probable ways."""

    sums: Tensor  # (A, M), best first
    log_probs: Tensor  # (A, M)
    tokens: Tensor  # (A, M)
    parents: Tensor  # (A, M)


class _Finished(NamedTuple):
    """The N best finished hypotheses of each sentence, best first; score -inf for empty slots."""

    scores: Tensor  # (A, N)
    log_probs: Tensor  # (A, N)
    tokens: Tensor  # (A, N, T) generated tokens, -1 after the last


def _topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`topk` of each row of (B, V), faster for a large V: the k best values are in the k blocks with the largest maxima."""
    num_blocks = values.size(1) // BLOCK_SIZE
    if num_blocks <= k or values.device.type != "cpu":
        return values.topk(k, dim=1)
    blocks = values[:, : num_blocks * BLOCK_SIZE].reshape(values.size(0), num_blocks, BLOCK_SIZE)
    row_start = torch.arange(0, blocks[:, :, 0].numel(), num_blocks).unsqueeze(1)
    best_blocks = blocks.amax(2).topk(k, dim=1, sorted=False).indices  # (B, k)
    tokens = (best_blocks.unsqueeze(2) * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten(1)
    candidates = blocks.flatten(0, 1).index_select(0, (row_start + best_blocks).flatten()).view_as(tokens)
    # the incomplete last block
    rest = torch.arange(num_blocks * BLOCK_SIZE, values.size(1)).expand(values.size(0), -1)
    candidates, tokens = torch.cat([candidates, values[:, num_blocks * BLOCK_SIZE :]], 1), torch.cat([tokens, rest], 1)
    top_values, index = candidates.topk(k, dim=1)
    return top_values, tokens.gather(1, index)


def _two_best(values: Tensor) -> tuple[Tensor, Tensor]:
    """The two best tokens of each row of (B, V); of ties, the first, which `topk` does not guarantee."""
    value, token = values.max(1, keepdim=True)
    second = values.scatter(1, token, -math.inf).max(1, keepdim=True)
    return torch.cat([value, second.values], 1), torch.cat([token, second.indices], 1)


def _expand_greedy(beams: _Beams, log_probs: Tensor, processed: Tensor, banned_tokens: Sequence[int]) -> _Candidates:
    """The candidates of a single beam: its two best tokens, because the best one may be EOS."""
    values, tokens = _two_best(ban_tokens(banned_tokens)(processed, beams.tokens[:, 0]) if banned_tokens else processed)
    return _Candidates(beams.sums + values, beams.log_probs + log_probs.gather(1, tokens), tokens, torch.zeros_like(tokens))


def _expand(beams: _Beams, log_probs: Tensor, processed: Tensor, banned_tokens: Sequence[int], beam_size: int) -> _Candidates:
    """The best candidates over all beams of a sentence: twice the beam size, because each beam may lose one to EOS."""
    # top-k within each beam first: no addition over the whole vocabulary, and no copy of it for a few banned tokens
    values, tokens = _topk(processed, min(2 * beam_size + len(banned_tokens), processed.size(1)))
    for banned in banned_tokens:
        values = values.masked_fill(tokens == banned, -math.inf)
    model_sums = beams.log_probs.unsqueeze(2) + log_probs.gather(1, tokens).view(*beams.sums.shape, -1)
    totals = beams.sums.unsqueeze(2) + values.view_as(model_sums)  # (A, K, 2K)
    sums, index = totals.flatten(1).topk(min(2 * beam_size, totals[0].numel()), dim=1)
    tokens = tokens.view_as(model_sums).flatten(1).gather(1, index)
    return _Candidates(sums, model_sums.flatten(1).gather(1, index), tokens, index // values.size(1))


def _select_survivors(candidates: _Candidates, options: BeamOptions) -> Tensor:
    """The candidates that become the new beams, (A, K): the best ones that are not EOS."""
    sums = candidates.sums
    if options.eos_id is not None:
        sums = sums.masked_fill(candidates.tokens == options.eos_id, -math.inf)
    if options.beam_size == 1:
        return sums.argmax(1, keepdim=True)
    return sums.topk(min(options.beam_size, sums.size(1)), dim=1).indices


def _extend(beams: _Beams, candidates: _Candidates, survivors: Tensor, eos_id: int | None) -> _Beams:
    """The beams after the step. A beam whose only continuation is EOS becomes empty."""
    parents, tokens = candidates.parents.gather(1, survivors), candidates.tokens.gather(1, survivors)
    past = beams.tokens.gather(1, parents.unsqueeze(2).expand(-1, -1, beams.tokens.size(2)))
    sums = candidates.sums.gather(1, survivors)
    if eos_id is not None:
        sums = sums.masked_fill(tokens == eos_id, -math.inf)
    return _Beams(sums, candidates.log_probs.gather(1, survivors), torch.cat([past, tokens.unsqueeze(2)], 2))


def _generated(beams: _Beams, length: int) -> Tensor:
    """The generated tokens of each beam, (A, K, length)."""
    return beams.tokens[:, :, beams.tokens.size(2) - length :]


def _add_finished(finished: _Finished, scores: Tensor, log_probs: Tensor, tokens: Tensor) -> _Finished:
    """Merge hypotheses (A, M), (A, M), (A, M, T) into the finished ones and keep the best N; a score of -inf is ignored."""
    padded = F.pad(finished.tokens, (0, tokens.size(2) - finished.tokens.size(2)), value=NO_TOKEN)
    all_scores = torch.cat([finished.scores, scores], 1)
    best, index = all_scores.topk(finished.scores.size(1), dim=1)
    all_tokens = torch.cat([padded, tokens], 1).gather(1, index.unsqueeze(2).expand(-1, -1, tokens.size(2)))
    return _Finished(best, torch.cat([finished.log_probs, log_probs], 1).gather(1, index), all_tokens)


def _add_eos(finished: _Finished, beams: _Beams, candidates: _Candidates, options: BeamOptions, length: int) -> _Finished:
    """Add the candidates that are EOS, which beams of `length` tokens predict."""
    if options.eos_id is None:
        return finished
    sums, log_probs, tokens, parents = (part[:, : options.beam_size] for part in candidates)
    past = _generated(beams, length).gather(1, parents.unsqueeze(2).expand(-1, -1, length))
    scores = (sums / (length + 1) ** options.length_penalty).masked_fill(tokens != options.eos_id, -math.inf)
    return _add_finished(finished, scores, log_probs, torch.cat([past, tokens.unsqueeze(2)], 2))


def _add_stuck(finished: _Finished, beams: _Beams, candidates: _Candidates, options: BeamOptions, length: int) -> _Finished:
    """Add the best beam, unfinished, for sentences with no possible continuation and no finished hypothesis."""
    is_stuck = (candidates.sums[:, :1] == -math.inf) & (finished.scores[:, :1] == -math.inf)
    scores = (beams.sums[:, :1] / max(length, 1) ** options.length_penalty).masked_fill(~is_stuck, -math.inf)
    tokens = F.pad(_generated(beams, length)[:, :1], (0, finished.tokens.size(2) - length), value=NO_TOKEN)
    return _add_finished(finished, scores, beams.log_probs[:, :1], tokens)


def _move_stopped(
    finished: _Finished, beams: _Beams, options: BeamOptions, sentences: list[int], length: int
) -> tuple[_Finished, _Beams]:
    """Move the beams for which `options.finished` is true to the finished hypotheses."""
    if options.finished is None:
        return finished, beams
    outputs = _generated(beams, length)
    beam_sentences = [sentence for sentence in sentences for _ in range(outputs.size(1))]
    is_stopped = options.finished(beam_sentences, outputs.flatten(0, 1).tolist())
    stopped = torch.tensor(is_stopped, device=outputs.device).view_as(beams.sums)
    scores = (beams.sums / length**options.length_penalty).masked_fill(~stopped, -math.inf)
    active = beams._replace(sums=beams.sums.masked_fill(stopped, -math.inf))
    return _add_finished(finished, scores, beams.log_probs, outputs), active


def _best_hypotheses(finished: _Finished, row: int) -> list[Hypothesis]:
    """The finished hypotheses of one sentence."""
    if finished.scores[row].isnan().any():  # topk sorts NaN before every number
        raise ModelError("", NAN_PROBS)
    values = zip(finished.tokens[row].tolist(), finished.scores[row].tolist(), finished.log_probs[row].tolist(), strict=True)
    return [
        Hypothesis([token for token in tokens if token != NO_TOKEN], score, log_prob)
        for tokens, score, log_prob in values
        if score > -math.inf
    ]


class _Search:
    """The state of the search for a batch of sentences."""

    def __init__(self, tokens: Tensor, options: BeamOptions) -> None:
        batch_size, device = tokens.size(0), tokens.device
        self.options = options
        self.sentences = list(range(batch_size))  # those still active
        self.results: list[list[Hypothesis]] = [[] for _ in range(batch_size)]
        zeros = torch.zeros(batch_size, 1, dtype=torch.float64, device=device)
        self.beams = _Beams(zeros, zeros, tokens.unsqueeze(1))
        empty = torch.full((batch_size, options.n_best), -math.inf, dtype=torch.float64, device=device)
        self.finished = _Finished(empty, empty, tokens.new_full((batch_size, options.n_best, 0), NO_TOKEN))

    def advance(
        self, log_probs: Tensor, processor: LogitsProcessor | None, length: int, progress: Callable[[BeamEvent], None] | None
    ) -> Tensor:
        """Extend every beam, of `length` generated tokens, by one token. Return the row of the old batch that each new row
        extends."""
        options, beams = self.options, self.beams
        processed, tokens, banned_tokens = log_probs.float(), beams.tokens.flatten(0, 1), options.banned_tokens
        if options.eos_id is not None and length < options.min_new_tokens:
            banned_tokens = [*banned_tokens, options.eos_id]
        if processor is not None:  # it sees the allowed tokens only
            processed, banned_tokens = processor(ban_tokens(banned_tokens)(processed, tokens), tokens), ()
        if options.beam_size == 1:
            candidates = _expand_greedy(beams, log_probs, processed, banned_tokens)
        else:
            candidates = _expand(beams, log_probs, processed, banned_tokens, options.beam_size)
        survivors = _select_survivors(candidates, options)
        if progress is not None:
            progress(BeamEvent(self.sentences, candidates.tokens, candidates.parents, candidates.sums, survivors))
        finished = _add_eos(self.finished, beams, candidates, options, length)
        finished = _add_stuck(finished, beams, candidates, options, length)
        self.beams = _extend(beams, candidates, survivors, options.eos_id)
        self.finished, self.beams = _move_stopped(finished, self.beams, options, self.sentences, length + 1)
        if options.beam_size == 1:  # greedy: stop at the first finished hypothesis
            done = self.finished.scores[:, :1] > -math.inf
            self.beams = self.beams._replace(sums=self.beams.sums.masked_fill(done, -math.inf))
        row_start = torch.arange(len(self.sentences), device=survivors.device).unsqueeze(1) * beams.sums.size(1)
        return row_start + candidates.parents.gather(1, survivors)

    def remove_finished(self) -> Tensor | None:
        """Remove the sentences whose results no active beam can improve. Return the rows that stay, None if all do."""
        # log-probabilities only decrease: no hypothesis can finish with a better score than this
        bound = self.beams.sums.amax(1) / self.options.max_new_tokens**self.options.length_penalty
        is_done = (self.finished.scores[:, -1] >= bound).tolist()
        if not any(is_done):
            return None
        for row in (row for row, done in enumerate(is_done) if done):
            self.results[self.sentences[row]] = _best_hypotheses(self.finished, row)
        active = [row for row, done in enumerate(is_done) if not done]
        self.sentences = [self.sentences[row] for row in active]
        index = torch.tensor(active, dtype=torch.long, device=self.beams.sums.device)
        self.beams = _Beams(*select(tuple(self.beams), index))
        self.finished = _Finished(*select(tuple(self.finished), index))
        return index

    def close(self, length: int) -> list[list[Hypothesis]]:
        """All results. Beams that are active at the limit, with `length` tokens, count as finished."""
        scores = self.beams.sums / length**self.options.length_penalty
        self.finished = _add_finished(self.finished, scores, self.beams.log_probs, _generated(self.beams, length))
        for row, sentence in enumerate(self.sentences):
            self.results[sentence] = _best_hypotheses(self.finished, row)
        return self.results


@torch.no_grad()
def beam_search(
    model: IncrementalModel[S],
    prompt: Tensor,
    *,
    options: BeamOptions,
    token_mask: Tensor | None = None,
    state: S | None = None,
    processor: LogitsProcessor | None = None,
    progress: Callable[[BeamEvent], None] | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of each row of `prompt` (B, T), right-padded where token_mask is False, best first.

    A row has fewer than `options.n_best` hypotheses if no more exist, but at least one: if no continuation is possible, the
    unfinished tokens up to that point. `state` is the initial state of the rows, such as that of their sources; `processor`
    changes the log-probabilities that the search ranks by.
    """
    check_length(model.max_positions, prompt.size(1), options.max_new_tokens)
    search = _Search(right_aligned(prompt, token_mask), options)
    log_probs, current_state = model.start(prompt, token_mask, state)
    for length in range(options.max_new_tokens):
        rows = search.advance(log_probs, processor, length, progress)
        if length + 1 == options.max_new_tokens:
            break
        active = search.remove_finished()
        if not search.sentences:
            return search.results
        if options.beam_size > 1:
            current_state = expand_to_beams(current_state, (rows if active is None else rows[active]).flatten(), active)
        elif active is not None:  # each row extends itself: copy only if rows were removed
            current_state = select(current_state, active)
        log_probs, current_state = model.step(search.beams.tokens[:, :, -1].flatten(), current_state)
    return search.close(options.max_new_tokens)
