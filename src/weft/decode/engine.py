"""Rows that are decoded side by side, admitted and cancelled between steps: what sampling, streams and servers stand on.

Each row has its own prompt, limits, filters and random numbers, and gets what it would get alone. (Numbers of a network may
differ in the last bits: products of matrices of other sizes are rounded in another order.) Rows of every age share one state
where their states join, with blank columns where a row is younger; groups of rows whose states do not join step apart.

Shapes: B rows, T positions, V words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import NO_TOKEN, NOT_A_NUMBER, LogitsProcessor, Noise, right_aligned, sample_token
from weft.decode.options import check_length
from weft.errors import ModelError, UsageError
from weft.nn.state import compact, join, join_all, select

S = TypeVar("S")
Reason = Literal["end", "limit", "stuck"]


class Request(NamedTuple):
    """A row that is to be written."""

    prompt: Sequence[int]  # one token or more
    max_new_tokens: int
    eos_id: int | None = None  # the token that ends the row
    min_new_tokens: int = 0  # before that token
    logits_processor: LogitsProcessor | None = None  # rows with the same one are processed together
    noise: Noise | None = None  # what the row is drawn by; None: the best token each time
    state: Any = None  # of this row, before its prompt: that of a source, or of a text that goes on


class Event(NamedTuple):
    """What a row got in a step."""

    row: int
    token: int  # -1 where the row is stuck
    log_prob: float  # under the model itself
    done: Reason | None  # why it has ended: its end token, its limit, or because no token is possible


def pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Tokens and keep (B, T), padded on the right; None where nothing is, for attention is faster without a mask."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    padded = bool((lengths < width).any())
    return tokens, (torch.arange(width) < lengths.unsqueeze(1)).to(device) if padded else None


@dataclass(slots=True)
class _Row:
    number: int
    request: Request
    written: int = 0  # tokens

    def event(self, token: int, log_prob: float) -> Event:
        """One token more."""
        self.written += 1
        request = self.request
        if token == NO_TOKEN:
            return Event(self.number, token, 0.0, "stuck")
        if token == request.eos_id:
            return Event(self.number, token, log_prob, "end")
        return Event(self.number, token, log_prob, "limit" if self.written == request.max_new_tokens else None)


class _Kind(NamedTuple):
    """Rows of a group that are processed and drawn together."""

    logits_processor: LogitsProcessor | None
    places: list[int]  # in the group
    drawn: list[tuple[_Row, Noise]]  # by their random numbers; none: all take the best token


def _kinds(rows: Sequence[_Row]) -> list[_Kind]:
    found: dict[tuple[int, bool], _Kind] = {}
    for place, row in enumerate(rows):
        processor, noise = row.request.logits_processor, row.request.noise
        kind = found.setdefault((id(processor), noise is None), _Kind(processor, [], []))
        kind.places.append(place)
        if noise is not None:
            kind.drawn.append((row, noise))
    return list(found.values())


class _Group(Generic[S]):
    """Rows that step together."""

    def __init__(self, rows: list[_Row], tokens: Tensor, log_probs: Tensor, state: S) -> None:
        self.set_rows(rows)
        self.tokens = tokens  # (B, T) all that was read, aligned on the right
        self.state = state
        self.log_probs: Tensor | None = log_probs  # (B, V) of the next token; None while `chosen` is not read
        self.chosen: Tensor | None = None  # (B,) the newest token

    def set_rows(self, rows: list[_Row]) -> None:
        self.rows, self.kinds = rows, _kinds(rows)
        self.held = any(row.request.min_new_tokens and row.request.eos_id is not None for row in rows)  # from an early end

    def keep(self, places: list[int]) -> None:
        """Let go of all other rows."""
        index = torch.tensor(places, device=self.tokens.device)
        self.set_rows([self.rows[place] for place in places])
        rest = select((self.tokens, self.log_probs, self.chosen, self.state), index)
        self.tokens, self.log_probs, self.chosen, self.state = rest

    def read(self, steps: IncrementalModel[S]) -> Tensor:
        """The log-probabilities (B, V) of each row's next token; what was chosen last is read."""
        if self.log_probs is None and self.chosen is not None:
            self.log_probs, self.state = steps.step(self.chosen, self.state)
            self.tokens = torch.cat([self.tokens, self.chosen.unsqueeze(1)], 1)
            self.chosen = None
        if self.log_probs is None:
            raise RuntimeError("a group of rows has nothing to read")
        return self.log_probs

    def choose(self, log_probs: Tensor) -> Tensor:
        """Each row's next token (B,), -1 where none is possible."""
        allowed = self._without_early_ends(log_probs.float()) if self.held else log_probs.float()
        if len(self.kinds) == 1:
            return self._draw(self.kinds[0], allowed, self.tokens)
        chosen = self.tokens.new_empty(len(self.rows))
        for kind in self.kinds:
            index = torch.tensor(kind.places, device=chosen.device)
            chosen[index] = self._draw(kind, allowed[index], self.tokens[index])
        return chosen

    def _without_early_ends(self, log_probs: Tensor) -> Tensor:
        early = [
            (place, row.request.eos_id)
            for place, row in enumerate(self.rows)
            if row.written < row.request.min_new_tokens and row.request.eos_id is not None
        ]
        if not early:
            return log_probs
        places, ends = torch.tensor(early, device=log_probs.device).unbind(1)
        return log_probs.index_put((places, ends), log_probs.new_tensor(-math.inf))

    def _draw(self, kind: _Kind, log_probs: Tensor, tokens: Tensor) -> Tensor:
        if kind.logits_processor is not None:
            log_probs = kind.logits_processor(log_probs, tokens)
        if not kind.drawn:
            return sample_token(log_probs)
        numbers = [noise(row.written) for row, noise in kind.drawn]
        return sample_token(log_probs, torch.tensor(numbers, dtype=torch.float64).to(log_probs.device))

    def advance(self, steps: IncrementalModel[S]) -> list[Event]:
        """One token of every row."""
        log_probs = self.read(steps)
        chosen = self.choose(log_probs)
        tokens, spent = _to_host(chosen, log_probs)
        self.log_probs, self.chosen = None, chosen
        return [row.event(token, log_prob) for row, token, log_prob in zip(self.rows, tokens, spent, strict=True)]


def _to_host(chosen: Tensor, log_probs: Tensor) -> tuple[list[int], list[float]]:
    """What was chosen, and its log-probabilities: the one time in a step that the device is waited for."""
    spent = log_probs.gather(1, chosen.clamp(min=0).unsqueeze(1)).squeeze(1)
    numbers = torch.stack([chosen.double(), spent.double(), log_probs.amax(1).double()]).cpu()
    if numbers[2].isnan().any():  # one NaN in a row makes its maximum NaN
        raise ModelError("", NOT_A_NUMBER)
    return numbers[0].long().tolist(), numbers[1].tolist()


def _joined(first: _Group[S], second: _Group[S], steps: IncrementalModel[S]) -> _Group[S] | None:
    """Both as one, without what rows that have left leave behind; None where their states do not join."""
    try:
        state = compact(join(first.state, second.state))
    except ValueError:
        return None
    rows = first.rows + second.rows
    width = max(len(row.request.prompt) + row.written for row in rows)
    parts = []
    for group in (first, second):
        tokens = group.tokens[:, max(0, group.tokens.size(1) - width) :]
        parts.append(F.pad(tokens, (width - tokens.size(1), 0), value=NO_TOKEN))
    return _Group(rows, torch.cat(parts), torch.cat([first.read(steps), second.read(steps)]), state)


class Engine(Generic[S]):
    """Decodes rows that come and go. Numbers of rows are never used twice."""

    def __init__(self, steps: IncrementalModel[S], device: torch.device | str = "cpu") -> None:
        self.steps, self.device = steps, torch.device(device)
        self._groups: list[_Group[S]] = []
        self._running: dict[int, None] = {}  # a set in order
        self._gone: set[int] = set()  # rows that have ended, and are still in their group
        self._fresh = False  # whether rows were admitted since the last step
        self._next = 0

    @property
    def running(self) -> list[int]:
        """The rows that the next step writes to."""
        return list(self._running)

    @torch.no_grad()
    def admit(self, requests: Sequence[Request], *, state: S | None = None) -> list[int]:
        """Reads the prompts; the numbers of the new rows, in order. `state` is that of all of them, a row each, where it is
        there as a whole; else each request has its own, or none."""
        if not requests:
            return []
        _check(requests, self.steps.max_positions)
        rows = [_Row(self._next + place, request) for place, request in enumerate(requests)]
        if state is not None:
            groups = [self._read(rows, state)]
        else:
            with_state = [row for row in rows if row.request.state is not None]
            without = [row for row in rows if row.request.state is None]
            groups = [self._read(without, None)] if without else []
            if with_state:
                groups.append(self._read(with_state, join_all([row.request.state for row in with_state])))
        self._groups += groups
        self._next += len(rows)
        self._running |= dict.fromkeys(row.number for row in rows)
        self._fresh = True
        return [row.number for row in rows]

    def _read(self, rows: list[_Row], state: S | None) -> _Group[S]:
        prompt, token_mask = pad([row.request.prompt for row in rows], self.device)
        log_probs, past = self.steps.start(prompt, token_mask, state)
        return _Group(rows, right_aligned(prompt, token_mask), log_probs, past)

    @torch.no_grad()
    def step(self) -> list[Event]:
        """One token of every row, in the order that they were admitted; rows that end leave."""
        self._let_go()
        if self._fresh:
            self._join_groups()
        events = [event for group in self._groups for event in group.advance(self.steps)]
        if len(self._groups) > 1:
            events.sort()
        self._gone = {event.row for event in events if event.done is not None}
        for number in self._gone:
            del self._running[number]
        if not self._running:
            self._let_go()
        return events

    def cancel(self, number: int) -> None:
        """Lets go of a row, and of its memory, at once; nothing where it has ended."""
        self.cancel_all([number])

    def cancel_all(self, numbers: Iterable[int]) -> None:
        """`cancel` for several rows, in one go."""
        numbers = list(numbers)
        for number in numbers:
            if not 0 <= number < self._next:
                raise UsageError("engine", f"row {number} was never admitted")
        gone = {number for number in numbers if number in self._running}
        for number in gone:
            del self._running[number]
        self._gone |= gone
        if gone:
            self._let_go()

    @torch.no_grad()
    def _let_go(self) -> None:
        """Copies states without the rows that have ended."""
        if not self._gone:
            return
        for group in self._groups:
            places = [place for place, row in enumerate(group.rows) if row.number not in self._gone]
            if not places:
                group.set_rows([])
            elif len(places) < len(group.rows):
                group.keep(places)
        self._groups = [group for group in self._groups if group.rows]
        self._gone = set()

    def _join_groups(self) -> None:
        """As few groups as states allow; all have read what was chosen."""
        found: list[_Group[S]] = []
        for group in self._groups:
            group.read(self.steps)
            for place, other in enumerate(found):
                if (both := _joined(other, group, self.steps)) is not None:
                    found[place] = both
                    break
            else:
                found.append(group)
        self._groups, self._fresh = found, False


def _check(requests: Sequence[Request], max_positions: int | None) -> None:
    """Refuse rows that nothing can be written to, and those that would pass the last position that the model reads."""
    for request in requests:
        if not request.prompt:
            raise UsageError("engine", "a prompt must have one token or more")
        if request.max_new_tokens < 1:
            raise UsageError("engine", f"max_new_tokens must be 1 or more, not {request.max_new_tokens}")
    widest = max(requests, key=lambda request: len(request.prompt) + request.max_new_tokens)
    check_length(max_positions, len(widest.prompt), widest.max_new_tokens)
