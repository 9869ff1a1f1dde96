"""Beam search: batched, over cached states, for any model that steps.

A hypothesis ends with the end token, at the limit, or where `ended` says so. Its score is the sum of its adjusted
log-probabilities divided by length^alpha, where the length counts every token generated, the end included: alpha 0 is
the sum, 1 the mean a token, as in Hugging Face and CTranslate2. The end token counts only among the `width` best
candidates of a step, which is what the field calls beam search; a search over every possible end favours short texts.
A beam of 1 is greedy: it takes the best token, the first of equals, and is over at its first end, whatever alpha is.

Shapes: A sentences still searched, K beams each (1 at first), M candidates, N best, T positions, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import NO_TOKEN, NOT_A_NUMBER, LogitsProcessor, ban_tokens, right_aligned
from weft.decode.options import check_length
from weft.errors import ModelError
from weft.nn.state import expand_to_beams, select

S = TypeVar("S")
BLOCK = 64  # words whose best one is sought first


class BeamOptions(NamedTuple):
    beam_size: int
    max_new_tokens: int  # tokens
    eos_id: int | None = None
    length_penalty: float = 0.0  # >= 0
    n_best: int = 1
    min_new_tokens: int = 0  # tokens before the end token
    banned_tokens: Sequence[int] = ()  # tokens that are not written
    finished: Callable[[list[int], list[list[int]]], list[bool]] | None = None  # sentences and tokens so far: does it end here?


class Hypothesis(NamedTuple):
    tokens: list[int]  # generated, with the end token, without the prompt
    score: float
    log_prob: float  # under the model itself: not adjusted, not divided


class BeamEvent(NamedTuple):
    """One step of the search, for whoever watches."""

    sentences: list[int]  # (A,) rows of the prompt
    tokens: Tensor  # (A, M) candidates, best first
    parents: Tensor  # (A, M) the beam each one continues
    scores: Tensor  # (A, M) sums of log-probabilities
    survivors: Tensor  # (A, K) the candidates that go on


class _Beams(NamedTuple):
    # both float64: a float32 sum of hundreds of tokens is off in the fourth decimal, and orders what is near by chance
    sums: Tensor  # (A, K) of adjusted log-probabilities, -inf where there is no hypothesis
    log_probs: Tensor  # (A, K) of the model's own
    tokens: Tensor  # (A, K, T) with the prompt, right-aligned


class _Candidates(NamedTuple):
    sums: Tensor  # (A, M), best first
    log_probs: Tensor  # (A, M)
    tokens: Tensor  # (A, M)
    parents: Tensor  # (A, M)


class _Pool(NamedTuple):
    """The best that have ended, best first; a score is -inf where there is none yet."""

    scores: Tensor  # (A, N)
    log_probs: Tensor  # (A, N)
    tokens: Tensor  # (A, N, T) generated ones, -1 behind the last


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`topk` of each row of (B, V), faster where V is large: the best words are in the blocks whose best words are best."""
    blocks = values.size(1) // BLOCK
    if blocks <= count or values.device.type != "cpu":
        return values.topk(count, dim=1)
    whole = values[:, : blocks * BLOCK].reshape(values.size(0), blocks, BLOCK)
    first = torch.arange(0, whole[:, :, 0].numel(), blocks).unsqueeze(1)
    best = whole.amax(2).topk(count, dim=1, sorted=False).indices  # (B, count)
    words = (best.unsqueeze(2) * BLOCK + torch.arange(BLOCK)).flatten(1)
    near = whole.flatten(0, 1).index_select(0, (first + best).flatten()).view_as(words)
    rest = torch.arange(blocks * BLOCK, values.size(1)).expand(values.size(0), -1)
    near, words = torch.cat([near, values[:, blocks * BLOCK :]], 1), torch.cat([words, rest], 1)
    found, index = near.topk(count, dim=1)
    return found, words.gather(1, index)


def _two_best(values: Tensor) -> tuple[Tensor, Tensor]:
    """The two best words of each row of (B, V), the first of equals, which `topk` does not promise."""
    value, word = values.max(1, keepdim=True)
    other = values.scatter(1, word, -math.inf).max(1, keepdim=True)
    return torch.cat([value, other.values], 1), torch.cat([word, other.indices], 1)


def _expand_one(beams: _Beams, log_probs: Tensor, allowed: Tensor, banned_tokens: Sequence[int]) -> _Candidates:
    """The two best tokens of the one beam of a sentence."""
    values, words = _two_best(ban_tokens(banned_tokens)(allowed, beams.tokens[:, 0]) if banned_tokens else allowed)
    return _Candidates(beams.sums + values, beams.log_probs + log_probs.gather(1, words), words, torch.zeros_like(words))


def _expand(beams: _Beams, log_probs: Tensor, allowed: Tensor, banned_tokens: Sequence[int], beam_size: int) -> _Candidates:
    """The best tokens over all beams of a sentence: twice the width, for each beam may lose one to the end token."""
    # first within each beam: then no sum is taken over the whole vocabulary, and no copy of it made for a few banned words
    values, words = _top(allowed, min(2 * beam_size + len(banned_tokens), allowed.size(1)))
    for token in banned_tokens:
        values = values.masked_fill(words == token, -math.inf)
    spent = beams.log_probs.unsqueeze(2) + log_probs.gather(1, words).view(*beams.sums.shape, -1)
    totals = beams.sums.unsqueeze(2) + values.view_as(spent)
    sums, index = totals.flatten(1).topk(min(2 * beam_size, totals[0].numel()), dim=1)
    tokens = words.view_as(spent).flatten(1).gather(1, index)
    return _Candidates(sums, spent.flatten(1).gather(1, index), tokens, index // values.size(1))


def _keep(candidates: _Candidates, options: BeamOptions) -> Tensor:
    """Which candidates go on, (A, K)."""
    sums = candidates.sums
    if options.eos_id is not None:
        sums = sums.masked_fill(candidates.tokens == options.eos_id, -math.inf)
    if options.beam_size == 1:
        return sums.argmax(1, keepdim=True)
    return sums.topk(min(options.beam_size, sums.size(1)), dim=1).indices


def _move(beams: _Beams, candidates: _Candidates, kept: Tensor, end: int | None) -> _Beams:
    """The beams after the step; one that could only go on with the end token is gone."""
    parents, tokens = candidates.parents.gather(1, kept), candidates.tokens.gather(1, kept)
    past = beams.tokens.gather(1, parents.unsqueeze(2).expand(-1, -1, beams.tokens.size(2)))
    sums = candidates.sums.gather(1, kept)
    if end is not None:
        sums = sums.masked_fill(tokens == end, -math.inf)
    return _Beams(sums, candidates.log_probs.gather(1, kept), torch.cat([past, tokens.unsqueeze(2)], 2))


def _outputs(beams: _Beams, count: int) -> Tensor:
    """The `count` tokens generated so far, (A, K, count)."""
    return beams.tokens[:, :, beams.tokens.size(2) - count :]


def _add(pool: _Pool, scores: Tensor, log_probs: Tensor, tokens: Tensor) -> _Pool:
    """The best of a pool and of what has ended now, at scores of -inf what has not: (A, M), (A, M), (A, M, T)."""
    grown = F.pad(pool.tokens, (0, tokens.size(2) - pool.tokens.size(2)), value=NO_TOKEN)
    all_scores = torch.cat([pool.scores, scores], 1)
    best, index = all_scores.topk(pool.scores.size(1), dim=1)
    all_tokens = torch.cat([grown, tokens], 1).gather(1, index.unsqueeze(2).expand(-1, -1, tokens.size(2)))
    return _Pool(best, torch.cat([pool.log_probs, log_probs], 1).gather(1, index), all_tokens)


def _add_ends(pool: _Pool, beams: _Beams, candidates: _Candidates, options: BeamOptions, count: int) -> _Pool:
    """The pool with the candidates of this step, the count-th from 0, that are the end token."""
    if options.eos_id is None:
        return pool
    sums, tokens = candidates.sums[:, : options.beam_size], candidates.tokens[:, : options.beam_size]
    parents = candidates.parents[:, : options.beam_size]
    past = _outputs(beams, count).gather(1, parents.unsqueeze(2).expand(-1, -1, count))
    scores = (sums / (count + 1) ** options.length_penalty).masked_fill(tokens != options.eos_id, -math.inf)
    return _add(pool, scores, candidates.log_probs[:, : options.beam_size], torch.cat([past, tokens.unsqueeze(2)], 2))


def _add_stuck(pool: _Pool, beams: _Beams, candidates: _Candidates, options: BeamOptions, count: int) -> _Pool:
    """The pool with the best beam as it stands, where nothing has ended and nothing can go on."""
    stuck = (candidates.sums[:, :1] == -math.inf) & (pool.scores[:, :1] == -math.inf)
    scores = (beams.sums[:, :1] / max(count, 1) ** options.length_penalty).masked_fill(~stuck, -math.inf)
    tokens = F.pad(_outputs(beams, count)[:, :1], (0, pool.tokens.size(2) - count), value=NO_TOKEN)
    return _add(pool, scores, beams.log_probs[:, :1], tokens)


def _add_stopped(pool: _Pool, beams: _Beams, options: BeamOptions, sentences: list[int], count: int) -> tuple[_Pool, _Beams]:
    """Pool and beams after `ended` has moved hypotheses from the beams to the pool."""
    if options.finished is None:
        return pool, beams
    said = _outputs(beams, count)
    owners = [sentence for sentence in sentences for _ in range(said.size(1))]
    over = torch.tensor(options.finished(owners, said.flatten(0, 1).tolist()), device=said.device).view_as(beams.sums)
    scores = (beams.sums / count**options.length_penalty).masked_fill(~over, -math.inf)
    return _add(pool, scores, beams.log_probs, said), beams._replace(sums=beams.sums.masked_fill(over, -math.inf))


def _best_hypotheses(pool: _Pool, row: int) -> list[Hypothesis]:
    """What one sentence has found."""
    if pool.scores[row].isnan().any():  # NaN is sorted before every number
        raise ModelError("", NOT_A_NUMBER)
    values = zip(pool.tokens[row].tolist(), pool.scores[row].tolist(), pool.log_probs[row].tolist(), strict=True)
    return [
        Hypothesis([token for token in tokens if token != NO_TOKEN], score, log_prob)
        for tokens, score, log_prob in values
        if score > -math.inf
    ]


class _Search:
    """All sentences of a batch in the middle of a search."""

    def __init__(self, tokens: Tensor, options: BeamOptions) -> None:
        size, device = tokens.size(0), tokens.device
        self.options = options
        self.sentences = list(range(size))
        self.found: list[list[Hypothesis]] = [[] for _ in range(size)]
        zeros = torch.zeros(size, 1, dtype=torch.float64, device=device)
        self.beams = _Beams(zeros, zeros, tokens.unsqueeze(1))
        none = torch.full((size, options.n_best), -math.inf, dtype=torch.float64, device=device)
        self.pool = _Pool(none, none, tokens.new_full((size, options.n_best, 0), NO_TOKEN))

    def advance(
        self, log_probs: Tensor, processor: LogitsProcessor | None, count: int, progress: Callable[[BeamEvent], None] | None
    ) -> Tensor:
        """Choose the count-th token from 0 of every beam; the rows of the old batch that the new one continues."""
        options, beams = self.options, self.beams
        allowed, tokens, banned_tokens = log_probs.float(), beams.tokens.flatten(0, 1), options.banned_tokens
        if options.eos_id is not None and count < options.min_new_tokens:
            banned_tokens = [*banned_tokens, options.eos_id]
        if processor is not None:  # it sees what is left
            allowed, banned_tokens = processor(ban_tokens(banned_tokens)(allowed, tokens), tokens), ()
        if options.beam_size == 1:
            candidates = _expand_one(beams, log_probs, allowed, banned_tokens)
        else:
            candidates = _expand(beams, log_probs, allowed, banned_tokens, options.beam_size)
        kept = _keep(candidates, options)
        if progress is not None:
            progress(BeamEvent(self.sentences, candidates.tokens, candidates.parents, candidates.sums, kept))
        pool = _add_ends(self.pool, beams, candidates, options, count)
        pool = _add_stuck(pool, beams, candidates, options, count)
        self.beams = _move(beams, candidates, kept, options.eos_id)
        self.pool, self.beams = _add_stopped(pool, self.beams, options, self.sentences, count + 1)
        if options.beam_size == 1:  # greedy: where it has ended, nothing goes on
            over = self.pool.scores[:, :1] > -math.inf
            self.beams = self.beams._replace(sums=self.beams.sums.masked_fill(over, -math.inf))
        first = torch.arange(len(self.sentences), device=kept.device).unsqueeze(1) * beams.sums.size(1)
        return first + candidates.parents.gather(1, kept)

    def drop_finished(self) -> Tensor | None:
        """Let go of sentences that nothing alive can improve; those that stay, None where all do."""
        # log-probabilities only ever fall, so no hypothesis can end above this
        hope = self.beams.sums.amax(1) / self.options.max_new_tokens**self.options.length_penalty
        done = (self.pool.scores[:, -1] >= hope).tolist()
        if not any(done):
            return None
        for row in (row for row, over in enumerate(done) if over):
            self.found[self.sentences[row]] = _best_hypotheses(self.pool, row)
        stay = [row for row, over in enumerate(done) if not over]
        self.sentences = [self.sentences[row] for row in stay]
        index = torch.tensor(stay, dtype=torch.long, device=self.beams.sums.device)
        self.beams, self.pool = _Beams(*select(tuple(self.beams), index)), _Pool(*select(tuple(self.pool), index))
        return index

    def close(self, count: int) -> list[list[Hypothesis]]:
        """Everything found; what is alive at the limit counts as it stands."""
        scores = self.beams.sums / count**self.options.length_penalty
        self.pool = _add(self.pool, scores, self.beams.log_probs, _outputs(self.beams, count))
        for row, sentence in enumerate(self.sentences):
            self.found[sentence] = _best_hypotheses(self.pool, row)
        return self.found


@torch.no_grad()
def beam_search(
    steps: IncrementalModel[S],
    prompt: Tensor,
    *,
    options: BeamOptions,
    token_mask: Tensor | None = None,
    state: S | None = None,
    processor: LogitsProcessor | None = None,
    progress: Callable[[BeamEvent], None] | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of each row of `prompt` (B, T), right-padded where keep is False, best first.

    A row gets fewer than `options.n_best` where there are no more, and one at least: where all is impossible, what was
    said until then, unended.
    """
    check_length(steps.max_positions, prompt.size(1), options.max_new_tokens)
    search = _Search(right_aligned(prompt, token_mask), options)
    log_probs, past = steps.start(prompt, token_mask, state)
    for count in range(options.max_new_tokens):
        rows = search.advance(log_probs, processor, count, progress)
        if count + 1 == options.max_new_tokens:
            break
        stay = search.drop_finished()
        if not search.sentences:
            return search.found
        if options.beam_size > 1:
            past = expand_to_beams(past, (rows if stay is None else rows[stay]).flatten(), stay)
        elif stay is not None:  # each row continues itself: nothing is copied but where some have left
            past = select(past, stay)
        log_probs, past = steps.step(search.beams.tokens[:, :, -1].flatten(), past)
    return search.close(options.max_new_tokens)
