"""Continuous batching: rows are decoded together, and admitted and cancelled between steps. Sampling and streaming use it.

Each row has its own prompt, limits, logits processor and random numbers, and gets the same tokens as if it were decoded alone.
(Log-probabilities of a network may differ in the last bits, because products of matrices of other sizes round differently.)
Rows that were admitted at different times share one batch if their states can be joined, with empty columns for shorter rows.
Groups of rows whose states cannot be joined are stepped separately.

Shapes: B batch size, T sequence length, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from weft.decode.incremental import IncrementalModel, Step, StepsFromNothing, stepper
from weft.decode.logits_processors import (
    MAX_FEW,
    NAN_PROBS,
    NO_TOKEN,
    LogitsProcessor,
    Noise,
    TokenFree,
    right_aligned,
    sample_few,
    sample_token,
)
from weft.decode.options import check_length
from weft.errors import ModelError, UsageError
from weft.nn.state import compact, join, join_all, select

S = TypeVar("S")
MAX_STEPPED = 2  # tokens of a prompt that are read one by one; for large networks, each takes as long as a whole prompt
# why a row ended: EOS token, `max_new_tokens`, or no possible token
FinishReason = Literal["eos", "length", "stuck"]


class Request(NamedTuple):
    """A row to decode."""

    prompt: Sequence[int]  # at least one token
    max_new_tokens: int
    eos_id: int | None = None  # the token that ends the row
    min_new_tokens: int = 0  # number of tokens before EOS is allowed
    logits_processor: LogitsProcessor | None = None  # rows with the same processor are processed in one call
    noise: Noise | None = None  # random numbers of the row; None: greedy
    state: Any = None  # state of the row before its prompt: of an encoded source, or of a text to continue
    num_read: int = 0  # tokens at the start of the prompt that `state` has read, less than all
    num_top: int = 0  # most probable tokens of each step that `Engine.top_tokens` returns


class Event(NamedTuple):
    """A token that a step added to a row."""

    row: int  # row ID
    token: int  # -1 if the row is stuck
    log_prob: float  # of the model, without logits processor
    finish_reason: FinishReason | None  # None if the row continues


def pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Right-padded tokens and token mask, both (B, T). The mask is None without padding: attention is faster without it."""
    max_length = max(map(len, prompts))
    tokens = torch.tensor([[*prompt, *[0] * (max_length - len(prompt))] for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    is_padded = bool((lengths < max_length).any())
    return tokens, (torch.arange(max_length) < lengths.unsqueeze(1)).to(device) if is_padded else None


@dataclass(slots=True)
class _Row:
    row_id: int
    request: Request
    num_generated: int = 0

    def event(self, token: int, log_prob: float) -> Event:
        """Count a new token and describe it."""
        self.num_generated += 1
        request = self.request
        if token == NO_TOKEN:
            return Event(self.row_id, token, 0.0, "stuck")
        if token == request.eos_id:
            return Event(self.row_id, token, log_prob, "eos")
        return Event(self.row_id, token, log_prob, "length" if self.num_generated == request.max_new_tokens else None)


class _Subgroup(NamedTuple):
    """Rows of a group with the same logits processor, all sampled or all greedy."""

    logits_processor: LogitsProcessor | None
    indices: list[int]  # in the group
    noise: list[tuple[_Row, Noise]]  # random numbers of each row; empty: greedy

    def numbers(self) -> list[float]:
        """The random numbers of the next tokens."""
        return [noise(row.num_generated) for row, noise in self.noise]


def _subgroups(rows: Sequence[_Row]) -> list[_Subgroup]:
    """The rows of a group by logits processor, and sampled or greedy."""
    subgroups: dict[tuple[int, bool], _Subgroup] = {}
    for index, row in enumerate(rows):
        processor, noise = row.request.logits_processor, row.request.noise
        subgroup = subgroups.setdefault((id(processor), noise is None), _Subgroup(processor, [], []))
        subgroup.indices.append(index)
        if noise is not None:
            subgroup.noise.append((row, noise))
    return list(subgroups.values())


def _sample_few(rows: list[list[float]], subgroup: _Subgroup) -> Tensor:
    return torch.from_numpy(np.array(sample_few(rows, subgroup.numbers()), np.int64))  # faster than `torch.tensor`


class _Group(Generic[S]):
    """Rows that share a state and are stepped together."""

    def __init__(self, rows: list[_Row], tokens: Tensor, log_probs: Tensor, state: S) -> None:
        self.set_rows(rows)
        self._tokens, self._columns = tokens, list[Tensor]()  # all tokens read but the newest, and the newest, (B,) each
        self.state = state
        self.log_probs: Tensor | None = log_probs  # (B, V) of the next token; None until `next_tokens` are read
        self.next_tokens: Tensor | None = None  # (B,) chosen, but not read yet
        self.top_tokens: dict[int, list[tuple[int, float]]] = {}  # of the latest step, by row ID

    def set_rows(self, rows: list[_Row]) -> None:
        self.rows, self.subgroups = rows, _subgroups(rows)
        self.has_min_length = any(row.request.min_new_tokens and row.request.eos_id is not None for row in rows)
        self.with_top = [index for index, row in enumerate(rows) if row.request.num_top]

    def select_rows(self, indices: list[int]) -> None:
        """Remove all other rows."""
        index = torch.tensor(indices, device=self.tokens.device)
        self.set_rows([self.rows[i] for i in indices])
        selected = select((self.tokens, self.log_probs, self.next_tokens, self.state), index)
        self._tokens, self.log_probs, self.next_tokens, self.state = selected

    @property
    def tokens(self) -> Tensor:
        """All tokens read, right-aligned, (B, T)."""
        if self._columns:  # not joined in every step, because most logits processors do not look at tokens
            self._tokens, self._columns = torch.cat([self._tokens, torch.stack(self._columns, 1)], 1), []
        return self._tokens

    def read(self, step: Step[S]) -> Tensor:
        """Read the tokens chosen last. Return the log-probabilities (B, V) of each row's next token."""
        if self.log_probs is None and self.next_tokens is not None:
            self.log_probs, self.state = step(self.next_tokens, self.state)
            self._columns.append(self.next_tokens)
            self.next_tokens = None
        if self.log_probs is None:
            raise RuntimeError("group has no tokens to read")
        return self.log_probs

    def choose(self, log_probs: Tensor) -> Tensor:
        """Choose the next token of each row (B,); -1 if none is possible."""
        log_probs = self._ban_early_eos(log_probs.float()) if self.has_min_length else log_probs.float()
        if len(self.subgroups) == 1:
            return self._choose_in(self.subgroups[0], log_probs, None)
        next_tokens = log_probs.new_empty(len(self.rows), dtype=torch.long)
        for subgroup in self.subgroups:
            index = torch.tensor(subgroup.indices, device=next_tokens.device)
            next_tokens[index] = self._choose_in(subgroup, log_probs[index], index)
        return next_tokens

    def _ban_early_eos(self, log_probs: Tensor) -> Tensor:
        early = [
            (index, row.request.eos_id)
            for index, row in enumerate(self.rows)
            if row.num_generated < row.request.min_new_tokens and row.request.eos_id is not None
        ]
        if not early:
            return log_probs
        rows, eos_ids = torch.tensor(early, device=log_probs.device).unbind(1)
        return log_probs.index_put((rows, eos_ids), log_probs.new_tensor(-math.inf))

    def _choose_in(self, subgroup: _Subgroup, log_probs: Tensor, index: Tensor | None) -> Tensor:
        """The next tokens of the rows of a subgroup: those with these indices, or all."""
        processor = subgroup.logits_processor
        is_few = bool(subgroup.noise) and log_probs.numel() <= MAX_FEW and log_probs.device.type == "cpu"
        if is_few and isinstance(processor, TokenFree) and processor.in_list is not None:
            return _sample_few(list(map(processor.in_list, log_probs.tolist())), subgroup)
        if isinstance(processor, TokenFree):
            log_probs = processor.function(log_probs)
        elif processor is not None:
            log_probs = processor(log_probs, self.tokens if index is None else self.tokens[index])
        if not subgroup.noise:
            return sample_token(log_probs)
        if is_few:
            return _sample_few(log_probs.tolist(), subgroup)
        return sample_token(log_probs, torch.tensor(subgroup.numbers(), dtype=torch.float64).to(log_probs.device))

    def advance(self, step: Step[S]) -> list[Event]:
        """Generate one token of every row."""
        log_probs = self.read(step)
        next_tokens = self.choose(log_probs)
        tokens, token_log_probs = _to_host(next_tokens, log_probs)
        self.top_tokens = self._top_tokens(log_probs) if self.with_top else {}
        self.log_probs, self.next_tokens = None, next_tokens
        chosen = zip(self.rows, tokens, token_log_probs, strict=True)
        return [row.event(token, log_prob) for row, token, log_prob in chosen]

    def _top_tokens(self, log_probs: Tensor) -> dict[int, list[tuple[int, float]]]:
        """The most probable tokens of the rows that want them, by row ID, with their log-probabilities."""
        counts = {index: min(self.rows[index].request.num_top, log_probs.size(1)) for index in self.with_top}
        best = log_probs[self.with_top].float().topk(max(counts.values()), 1)
        listed = zip(self.with_top, best.indices.tolist(), best.values.tolist(), strict=True)
        return {
            self.rows[index].row_id: list(zip(tokens[: counts[index]], values[: counts[index]], strict=True))
            for index, tokens, values in listed
        }


def _to_host(next_tokens: Tensor, log_probs: Tensor) -> tuple[list[int], list[float]]:
    """The chosen tokens and their log-probabilities as lists: the only device sync of a step."""
    if log_probs.device.type == "cpu":
        tokens: list[int] = next_tokens.tolist()
        return tokens, _in_rows(log_probs.numpy(), tokens)
    token_log_probs = log_probs.gather(1, next_tokens.clamp(min=0).unsqueeze(1)).squeeze(1)
    stacked = torch.stack([next_tokens.double(), token_log_probs.double(), log_probs.amax(1).double()]).cpu()
    if stacked[2].isnan().any():  # a NaN in a row makes its maximum NaN
        raise ModelError("", NAN_PROBS)
    return stacked[0].long().tolist(), stacked[1].tolist()


def _in_rows(log_probs: np.ndarray, tokens: list[int]) -> list[float]:
    """The log-probability of each row's token, which has no meaning for a row without a token."""
    values = [log_probs.item(row, token) for row, token in enumerate(tokens)]
    # a NaN is chosen, or leaves no token; the maximum of all would be slow
    if (NO_TOKEN in tokens or any(map(math.isnan, values))) and math.isnan(log_probs.max()):
        raise ModelError("", NAN_PROBS)
    return values


def _join(first: _Group[S], second: _Group[S], step: Step[S]) -> _Group[S] | None:
    """One group from two, without the columns that removed rows left behind; None if their states cannot be joined."""
    try:
        state = compact(join(first.state, second.state))
    except ValueError:
        return None
    rows = first.rows + second.rows
    max_length = max(len(row.request.prompt) + row.num_generated for row in rows)
    padded = []
    for group in (first, second):
        tokens = group.tokens[:, max(0, group.tokens.size(1) - max_length) :]
        padded.append(F.pad(tokens, (max_length - tokens.size(1), 0), value=NO_TOKEN))
    return _Group(rows, torch.cat(padded), torch.cat([first.read(step), second.read(step)]), state)


class Engine(Generic[S]):
    """Decodes rows that are admitted and removed at any time. Row IDs are never reused."""

    def __init__(self, model: IncrementalModel[S], device: torch.device | str = "cpu") -> None:
        self.model, self.device = model, torch.device(device)
        self._step = stepper(model)
        self._groups: list[_Group[S]] = []
        self._running: dict[int, None] = {}  # an ordered set
        self._ended: set[int] = set()  # rows that have ended but are still in their group
        self._has_new_groups = False  # whether rows were admitted since the last step
        self._next_id = 0
        # of the latest step: the most probable tokens of rows with `num_top`, and their log-probabilities
        self.top_tokens: dict[int, list[tuple[int, float]]] = {}

    @property
    def running(self) -> list[int]:
        """The rows that the next step extends."""
        return list(self._running)

    @torch.no_grad()
    def admit(self, requests: Sequence[Request], *, state: S | None = None) -> list[int]:
        """Read the prompts and return the IDs of the new rows, in order. `state` is the initial state of all of them, one row
        each; without it, each request may have its own."""
        if not requests:
            return []
        if any(row.num_read and (row.state is None or row.num_read >= len(row.prompt)) for row in requests):
            raise UsageError("num_read", "requires a state, and a token of the prompt that it has not read")
        check_requests([(len(row.prompt), row.max_new_tokens) for row in requests], self.model.max_positions)
        rows = [_Row(self._next_id + index, request) for index, request in enumerate(requests)]
        if state is not None:
            groups = [self._read(rows, state)]
        else:
            with_state = [row for row in rows if row.request.state is not None]
            without_state = [row for row in rows if row.request.state is None]
            groups = [self._read(without_state, None)] if without_state else []
            if with_state:
                groups.append(self._read(with_state, join_all([row.request.state for row in with_state])))
        self._groups += groups
        self._next_id += len(rows)
        self._running |= dict.fromkeys(row.row_id for row in rows)
        self._has_new_groups = True
        return [row.row_id for row in rows]

    def _read(self, rows: list[_Row], state: S | None) -> _Group[S]:
        """A new group of rows, whose prompts are read."""
        prompt, token_mask = pad([row.request.prompt for row in rows], self.device)
        if any(row.request.num_read for row in rows):
            rest, rest_mask = pad([row.request.prompt[row.request.num_read :] for row in rows], self.device)
        else:
            rest, rest_mask = prompt, token_mask
        is_short = rest.size(1) <= MAX_STEPPED and rest_mask is None and self.device.type == "cpu"
        if is_short and state is None and isinstance(self.model, StepsFromNothing):
            log_probs, new_state = self._read_by_steps(rest)
        else:
            log_probs, new_state = self.model.start(rest, rest_mask, state)
        return _Group(rows, right_aligned(prompt, token_mask), log_probs, new_state)

    def _read_by_steps(self, prompt: Tensor) -> tuple[Tensor, S]:
        """What `start` returns for a prompt without padding. A step of a small network is faster than its modules."""
        nothing: Any = None
        log_probs, state = self._step(prompt[:, 0], nothing)
        for token in prompt[:, 1:].unbind(1):
            log_probs, state = self._step(token, state)
        return log_probs, state

    def step(self) -> list[Event]:
        """Generate one token of every row, in the order of admission. Rows that end are removed."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._advance()
        return self._advance()

    def _advance(self) -> list[Event]:
        if self._ended:
            self._remove_ended()
        if self._has_new_groups:
            self._join_groups()
        events = [event for group in self._groups for event in group.advance(self._step)]
        events.sort()  # rows with and without a state of their own are admitted in separate groups
        self.top_tokens = {row_id: top for group in self._groups for row_id, top in group.top_tokens.items()}
        self._ended = {event.row for event in events if event.finish_reason is not None}
        for row_id in self._ended:
            del self._running[row_id]
        if not self._running:
            self._remove_ended()
        return events

    def cancel(self, row_id: int) -> None:
        """Remove a row and free its memory; no effect if it has ended."""
        self.cancel_all([row_id])

    def cancel_all(self, row_ids: Iterable[int]) -> None:
        """Cancel several rows at once."""
        row_ids = list(row_ids)
        for row_id in row_ids:
            if not 0 <= row_id < self._next_id:
                raise UsageError("engine", f"unknown row {row_id}")
        cancelled = {row_id for row_id in row_ids if row_id in self._running}
        for row_id in cancelled:
            del self._running[row_id]
        self._ended |= cancelled
        if cancelled:
            self._remove_ended()

    @torch.no_grad()
    def _remove_ended(self) -> None:
        """Remove the rows that have ended from groups and states."""
        if not self._ended:
            return
        for group in self._groups:
            indices = [index for index, row in enumerate(group.rows) if row.row_id not in self._ended]
            if not indices:
                group.set_rows([])
            elif len(indices) < len(group.rows):
                group.select_rows(indices)
        self._groups = [group for group in self._groups if group.rows]
        self._ended = set()

    def _join_groups(self) -> None:
        """Join groups wherever their states allow it, after reading their chosen tokens."""
        groups: list[_Group[S]] = []
        for group in self._groups:
            group.read(self._step)
            for index, other in enumerate(groups):
                if (joined := _join(other, group, self._step)) is not None:
                    groups[index] = joined
                    break
            else:
                groups.append(group)
        self._groups, self._has_new_groups = groups, False


def check_requests(lengths: Sequence[tuple[int, int]], max_positions: int | None) -> None:
    """Reject empty prompts, limits below 1, and rows that exceed the positions of the model. `lengths` are the number of tokens
    of each prompt and of its longest continuation."""
    for prompt_length, max_new_tokens in lengths:
        if not prompt_length:
            raise UsageError("prompt", "must have at least one token")
        if max_new_tokens < 1:
            raise UsageError("max_new_tokens", f"must be at least 1, got {max_new_tokens}")
    check_length(max_positions, *max(lengths, key=sum))
