"""Continuous batching for beam search: sentences are searched together, and admitted and cancelled between steps.

Each sentence has its own prompt, options and logits processor, and gets the same hypotheses as if it were searched alone.
(Scores of a network may differ in the last bits, because products of matrices of other sizes round differently.) Sentences with
the same beam size share one batch if their states can be joined. The first step of a sentence is its own, because its prompt is
read once and not once per beam; from then on it has K beams, like the others.

Shapes: A active sentences, K beams per sentence, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.decode import beam_step
from weft.decode.beam_step import BeamEvent, BeamOptions, Beams, Finished, Hypothesis, Lengths, Options
from weft.decode.engine import check_requests, pad
from weft.decode.incremental import IncrementalModel, Step, stepper
from weft.decode.logits_processors import NO_TOKEN, LogitsProcessor, right_aligned
from weft.errors import UsageError
from weft.nn.state import compact, expand_to_beams, join, join_all, select

S = TypeVar("S")
T = TypeVar("T")
Progress = Callable[[BeamEvent], None]
Result = tuple[int, list[Hypothesis]]  # the ID of a sentence and its n-best list


class BeamRequest(NamedTuple):
    """A sentence to search."""

    prompt: Sequence[int]  # at least one token
    options: BeamOptions
    state: Any = None  # state of the row before its prompt: of an encoded source, or of a text to continue
    processor: LogitsProcessor | None = None  # changes the log-probabilities that the search ranks by


class _Sentence(NamedTuple):
    sentence_id: int
    request: BeamRequest
    start: int  # number of steps that the engine had made when the sentence was admitted

    @property
    def deadline(self) -> int:
        """The step that generates the last token."""
        return self.start + self.request.options.max_new_tokens

    @property
    def first_eos(self) -> int:
        """The first step that may generate EOS."""
        options = self.request.options
        return self.start + 1 + (0 if options.eos_id is None else options.min_new_tokens)


def _by_identity(sentences: Sequence[_Sentence], value: Callable[[_Sentence], T | None]) -> list[tuple[T, list[int]]]:
    """The distinct values of the sentences, with the indices of the sentences that have each; without those that are None."""
    groups: dict[int, tuple[T, list[int]]] = {}
    for index, sentence in enumerate(sentences):
        if (part := value(sentence)) is not None:
            groups.setdefault(id(part), (part, []))[1].append(index)
    return list(groups.values())


class _Group(Generic[S]):
    """Sentences that share a state and are stepped together."""

    def __init__(self, sentences: list[_Sentence], tokens: Tensor, log_probs: Tensor, state: S) -> None:
        device, options = tokens.device, [sentence.request.options for sentence in sentences]
        zeros = torch.zeros(len(sentences), 1, dtype=torch.float64, device=device)
        self.beam_size = options[0].beam_size
        self.beams = Beams(zeros, zeros, tokens.unsqueeze(1))
        self.finished = Finished.empty(len(sentences), max(row.n_best for row in options), device)
        self.options = Options.stack(options, device)
        self.state = state
        self.log_probs: Tensor | None = log_probs  # (A, V) after the prompt; None: the newest tokens are not read yet
        self.set_sentences(sentences)

    def set_sentences(self, sentences: list[_Sentence]) -> None:
        """Set the sentences, and what follows from them and needs no tensor."""
        self.sentences = sentences
        self.processors = _by_identity(sentences, lambda sentence: sentence.request.processor)
        self.callbacks = _by_identity(sentences, lambda sentence: sentence.request.options.finished)
        self.starts = torch.tensor([sentence.start for sentence in sentences], device=self.beams.sums.device)
        self.first_start = min(sentence.start for sentence in sentences)
        self.next_deadline = min(sentence.deadline for sentence in sentences)
        self.last_first_eos = max(sentence.first_eos for sentence in sentences)

    def lengths(self, steps: int) -> Lengths:
        """The number of tokens that each sentence has generated after this many steps of the engine."""
        return Lengths(steps - self.starts, steps - self.first_start)

    def read(self, step: Step[S]) -> Tensor:
        """Read the newest token of each beam. Return the log-probabilities (A * K, V) of the next one."""
        log_probs, self.log_probs = self.log_probs, None
        if log_probs is None:
            log_probs, self.state = step(self.beams.tokens[:, :, -1].flatten(), self.state)
        return log_probs

    def process(self, log_probs: Tensor) -> Tensor:
        """Apply the logits processors to the rows (A * K, V) of their sentences."""
        if not self.processors:
            return log_probs
        num_beams, tokens = self.beams.sums.size(1), self.beams.tokens.flatten(0, 1)
        if len(self.processors[0][1]) == len(self.sentences):
            return self.processors[0][0](log_probs, tokens)
        processed = log_probs.clone()
        for processor, indices in self.processors:
            index = torch.tensor(indices, device=tokens.device)
            rows = (index.unsqueeze(1) * num_beams + torch.arange(num_beams, device=tokens.device)).flatten()
            processed[rows] = processor(log_probs[rows], tokens[rows])
        return processed

    def advance(self, step: Step[S], steps: int, progress: Progress | None) -> list[Result]:
        """Extend every beam by one token, in step number `steps` of the engine. Remove and return the sentences that end."""
        log_probs = self.read(step).float()
        lengths, beams, options = self.lengths(steps - 1), self.beams, self.options
        banned = options.banned(lengths.rows, some_are_short=steps < self.last_first_eos)
        beam_step.ban_(log_probs, banned.repeat_interleave(beams.sums.size(1), 0))
        candidates = beam_step.expand(beams, log_probs, self.process(log_probs), self.beam_size)
        survivors = beam_step.select_survivors(candidates, options.eos_ids, self.beam_size)
        if progress is not None:
            ids = [sentence.sentence_id for sentence in self.sentences]
            progress(BeamEvent(ids, candidates.tokens, candidates.parents, candidates.sums, survivors))
        self.finished = beam_step.add_ended(self.finished, beams, candidates, options, lengths, beam_size=self.beam_size)
        self.beams = beam_step.extend(beams, candidates, survivors, options.eos_ids)
        self.finish_beams(lengths.plus_one(), steps)
        row_start = torch.arange(len(self.sentences), device=survivors.device).unsqueeze(1) * beams.sums.size(1)
        return self.remove_done(row_start + candidates.parents.gather(1, survivors), steps)

    def finish_beams(self, lengths: Lengths, steps: int) -> None:
        """Move beams to the finished hypotheses that a callback ends, or that have reached their maximum length."""
        if self.callbacks:
            self.move_beams(self.ask_callbacks(lengths), lengths)
        if self.beam_size == 1:  # greedy: stop at the first finished hypothesis
            has_ended = self.finished.scores[:, :1] > -math.inf
            self.beams = self.beams._replace(sums=self.beams.sums.masked_fill(has_ended, -math.inf))
        if steps == self.next_deadline:
            self.move_beams((lengths.rows == self.options.max_new_tokens).unsqueeze(1).expand_as(self.beams.sums), lengths)

    def move_beams(self, is_ended: Tensor, lengths: Lengths) -> None:
        """Move the beams where `is_ended` (A, K) is True to the finished hypotheses."""
        self.finished = beam_step.add_beams(self.finished, self.beams, self.options, lengths, is_ended)
        self.beams = self.beams._replace(sums=self.beams.sums.masked_fill(is_ended, -math.inf))

    def ask_callbacks(self, lengths: Lengths) -> Tensor:
        """The beams that the callbacks `finished` end, (A, K)."""
        outputs = self.beams.generated(lengths).tolist()
        is_ended = torch.zeros(self.beams.sums.shape, dtype=torch.bool)
        for callback, indices in self.callbacks:
            beams = [(self.sentences[i].sentence_id, row) for i in indices for row in outputs[i]]
            tokens = [[token for token in row if token != NO_TOKEN] for _, row in beams]
            ended = callback([sentence_id for sentence_id, _ in beams], tokens)
            is_ended[indices] = torch.tensor(ended).view(len(indices), -1)
        return is_ended.to(self.beams.sums.device)

    def remove_done(self, rows: Tensor, steps: int) -> list[Result]:
        """Remove and return the sentences that end. `rows` (A, K) are the rows of the state that the beams extend."""
        done = beam_step.is_done(self.finished, self.beams, self.options).tolist()  # the only sync of a step
        if True not in done:
            if self.beam_size > 1:  # each row of a greedy search extends itself
                self.state = expand_to_beams(self.state, rows.flatten(), None)
            return []
        beam_step.check_numbers(self.finished, self.beams)
        results = self.results([index for index, is_done in enumerate(done) if is_done])
        self.keep([index for index, is_done in enumerate(done) if not is_done], rows, steps)
        return results

    def results(self, indices: list[int]) -> list[Result]:
        """The hypotheses of the sentences with these indices."""
        index = torch.tensor(indices, device=self.beams.sums.device)
        sentences = [self.sentences[i] for i in indices]
        hypotheses = Finished(*select(tuple(self.finished), index)).hypotheses(
            [sentence.request.options.n_best for sentence in sentences]
        )
        return [(sentence.sentence_id, best) for sentence, best in zip(sentences, hypotheses, strict=True)]

    def keep(self, indices: list[int], rows: Tensor, steps: int) -> None:
        """Remove all other sentences. `rows` (A, K) are the rows of the state that the beams extend. Columns of the state that
        only they needed are removed when other sentences enter."""
        if not indices:
            self.sentences = []
            return
        index = torch.tensor(indices, device=self.beams.sums.device)
        self.beams = Beams(*select(tuple(self.beams), index))
        self.finished = Finished(*select(tuple(self.finished), index))
        self.options = Options(*select(tuple(self.options), index))
        self.log_probs = select(self.log_probs, index)
        self.state = expand_to_beams(self.state, rows[index].flatten(), index)
        self.set_sentences([self.sentences[i] for i in indices])
        self.beams = self.beams._replace(tokens=self.beams.tokens[:, :, -self.width(steps) :])

    def remove(self, sentence_ids: set[int], steps: int) -> None:
        """Remove these sentences, between two steps."""
        indices = [i for i, sentence in enumerate(self.sentences) if sentence.sentence_id not in sentence_ids]
        if len(indices) < len(self.sentences):
            rows = torch.arange(self.beams.sums.numel(), device=self.beams.sums.device).view_as(self.beams.sums)
            self.keep(indices, rows, steps)

    def width(self, steps: int) -> int:
        """The number of tokens of the longest prefix."""
        return max(len(sentence.request.prompt) + steps - sentence.start for sentence in self.sentences)

    def widen(self, num_beams: int) -> None:
        """Fill up with empty beams: a sentence with few possible tokens has fewer than `beam_size` at first."""
        sentences, missing = len(self.sentences), num_beams - self.beams.sums.size(1)
        if missing:
            first = torch.arange(sentences, device=self.beams.sums.device) * (num_beams - missing)
            rows = first.unsqueeze(1) + F.pad(torch.arange(num_beams - missing, device=first.device), (0, missing))
            self.state = expand_to_beams(self.state, rows.flatten(), None)
            sums = F.pad(self.beams.sums, (0, missing), value=-math.inf)
            tokens = torch.cat([self.beams.tokens, self.beams.tokens[:, :1].expand(-1, missing, -1)], 1)
            self.beams = Beams(sums, F.pad(self.beams.log_probs, (0, missing)), tokens)

    def absorb(self, other: _Group[S], steps: int) -> bool:
        """Take over the sentences of another group, between two steps; False if the groups cannot be joined."""
        if self.beam_size != other.beam_size:
            return False
        num_beams = max(self.beams.sums.size(1), other.beams.sums.size(1))
        self.widen(num_beams)
        other.widen(num_beams)
        try:
            self.state = compact(join(self.state, other.state))
        except ValueError:
            return False
        self.finished = self.finished.join(other.finished)
        self.beams = self.beams.join(other.beams)
        self.options = Options(*join(tuple(self.options), tuple(other.options)))
        self.set_sentences(self.sentences + other.sentences)
        self.beams = self.beams._replace(tokens=self.beams.tokens[:, :, -self.width(steps) :])
        return True


class BeamEngine(Generic[S]):
    """Searches sentences that are admitted and removed at any time. IDs of sentences are never reused."""

    def __init__(self, model: IncrementalModel[S], device: torch.device | str = "cpu") -> None:
        self.model, self.device = model, torch.device(device)
        self._step = stepper(model)
        self._groups: list[_Group[S]] = []
        self._running: dict[int, None] = {}  # an ordered set
        self._next_id = 0
        self._steps = 0
        self._has_new_groups = False  # whether sentences were admitted since the last step

    @property
    def running(self) -> list[int]:
        """The sentences that the next step extends."""
        return list(self._running)

    @torch.no_grad()
    def admit(self, requests: Sequence[BeamRequest], *, state: S | None = None) -> list[int]:
        """Read the prompts and return the IDs of the new sentences, in order. `state` is the initial state of all of them, one
        row each; without it, each request may have its own."""
        if not requests:
            return []
        check_requests([(len(row.prompt), row.options.max_new_tokens) for row in requests], self.model.max_positions)
        sentences = [_Sentence(self._next_id + index, request, self._steps) for index, request in enumerate(requests)]
        kinds: dict[tuple[int, bool], list[int]] = {}
        for index, request in enumerate(requests):
            kinds.setdefault((request.options.beam_size, request.state is None), []).append(index)
        groups = list[_Group[S]]()
        for (_, is_stateless), indices in kinds.items():
            own_state = state
            if state is not None and len(indices) < len(requests):
                own_state = select(state, torch.tensor(indices, device=self.device))
            elif state is None and not is_stateless:
                own_state = join_all([requests[index].state for index in indices])
            groups.append(self._read([sentences[index] for index in indices], own_state))
        self._groups += groups
        self._next_id += len(sentences)
        self._running |= dict.fromkeys(sentence.sentence_id for sentence in sentences)
        self._has_new_groups = True
        return [sentence.sentence_id for sentence in sentences]

    def _read(self, sentences: list[_Sentence], state: S | None) -> _Group[S]:
        """A new group of sentences, whose prompts are read."""
        prompt, token_mask = pad([sentence.request.prompt for sentence in sentences], self.device)
        log_probs, new_state = self.model.start(prompt, token_mask, state)
        return _Group(sentences, right_aligned(prompt, token_mask), log_probs, new_state)

    @torch.no_grad()
    def step(self, progress: Progress | None = None) -> list[Result]:
        """Extend every beam by one token. Return the sentences that end, with their n best hypotheses, best first."""
        self._steps += 1
        results = [result for group in self._groups for result in group.advance(self._step, self._steps, progress)]
        for sentence_id, _ in results:
            del self._running[sentence_id]
        self._groups = [group for group in self._groups if group.sentences]
        if self._has_new_groups:
            self._join_groups()
        return sorted(results)

    def cancel(self, sentence_id: int) -> None:
        """Remove a sentence and free its memory; no effect if it has ended."""
        self.cancel_all([sentence_id])

    @torch.no_grad()
    def cancel_all(self, sentence_ids: Iterable[int]) -> None:
        """Cancel several sentences at once."""
        sentence_ids = list(sentence_ids)
        for sentence_id in sentence_ids:
            if not 0 <= sentence_id < self._next_id:
                raise UsageError("engine", f"unknown sentence {sentence_id}")
        cancelled = {sentence_id for sentence_id in sentence_ids if sentence_id in self._running}
        if not cancelled:
            return
        for sentence_id in cancelled:
            del self._running[sentence_id]
        for group in self._groups:
            group.remove(cancelled, self._steps)
        self._groups = [group for group in self._groups if group.sentences]

    def _join_groups(self) -> None:
        """Join groups wherever their states allow it."""
        groups: list[_Group[S]] = []
        for group in self._groups:
            if not any(other.absorb(group, self._steps) for other in groups):
                groups.append(group)
        self._groups, self._has_new_groups = groups, False
