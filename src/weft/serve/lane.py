"""A lane: rows of many requests that one run decodes together, one token per step (continuous batching).

Requests with different options share the steps. A row enters when another one has left, requests take turns, and a long prompt
is read in parts, one per step, so that it delays nobody for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from weft.decode.engine import Engine, Event, Request
from weft.decode.incremental import IncrementalModel
from weft.serve.ticket import Ticket

PREFILL_TOKENS = 256  # tokens of prompts that are read between two steps
MAX_NEW_ROWS = 16  # rows that enter between two steps


class Row(Protocol):
    """A row that is decoded."""

    @property
    def request(self) -> Request: ...

    def push(self, event: Event, top: Sequence[tuple[int, float]]) -> bool:
        """Take a new token, and the most probable ones if they are wanted. True if the row has ended, also before the engine
        ends it, such as by a stop string."""


class RowSource(Protocol):
    """The rows of one ticket."""

    @property
    def ticket(self) -> Ticket[Any]: ...

    def take(self) -> Row | None:
        """The next row; None after the last one."""


class _Reading:
    """A row whose long prompt is read in parts."""

    def __init__(self, source: RowSource, row: Row) -> None:
        self.source, self.row = source, row
        self.state, self.num_read = row.request.state, 0

    @property
    def is_last(self) -> bool:
        """Whether the rest is short enough to be read at once."""
        return len(self.row.request.prompt) - self.num_read <= PREFILL_TOKENS

    @torch.no_grad()
    def read(self, model: IncrementalModel[Any], device: torch.device) -> None:
        """Read the next part."""
        part = self.row.request.prompt[self.num_read : self.num_read + PREFILL_TOKENS]
        _, self.state = model.start(torch.tensor([part], device=device), None, self.state)
        self.num_read += len(part)

    @property
    def request(self) -> Request:
        return self.row.request._replace(state=self.state, num_read=self.num_read)


class SampleLane:
    """Rows that are sampled or decoded greedily."""

    def __init__(self, model: IncrementalModel[Any], device: torch.device, *, max_rows: int) -> None:
        self._engine: Engine[Any] = Engine(model, device)
        self._max_rows = max_rows
        self._waiting: deque[RowSource] = deque()
        self._reading: _Reading | None = None
        self._rows: dict[int, tuple[RowSource, Row]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._rows or self._waiting or self._reading)

    @property
    def num_rows(self) -> int:
        """Rows that are decoded now."""
        return len(self._rows)

    def add(self, source: RowSource) -> None:
        """Let the rows of a ticket wait."""
        self._waiting.append(source)

    def tickets(self) -> list[Ticket[Any]]:
        """Tickets with rows that wait or are decoded."""
        sources = [*self._waiting, *(source for source, _ in self._rows.values())]
        sources += [] if self._reading is None else [self._reading.source]
        return list({source.ticket.number: source.ticket for source in sources}.values())

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Remove all rows of a ticket and free their memory."""
        self._waiting = deque(source for source in self._waiting if source.ticket is not ticket)
        if self._reading is not None and self._reading.source.ticket is ticket:
            self._reading = None
        self._remove([row_id for row_id, (source, _) in self._rows.items() if source.ticket is ticket])

    def _remove(self, row_ids: Iterable[int]) -> None:
        row_ids = list(row_ids)
        self._engine.cancel_all(row_ids)
        for row_id in row_ids:
            del self._rows[row_id]

    def tick(self) -> int:
        """Let rows enter, and generate a token of each. Returns the number of tokens."""
        self._admit()
        if not self._rows:
            return 0
        events = self._engine.step()
        top = self._engine.top_tokens
        ended = [event.row for event in events if self._rows[event.row][1].push(event, top.get(event.row, ()))]
        self._remove(ended)
        return len(events)

    def _admit(self) -> None:
        """Read prompts: the next part of a long one, and short ones."""
        rows, requests, budget = list[tuple[RowSource, Row]](), list[Request](), PREFILL_TOKENS
        if self._reading is not None:
            if not self._reading.is_last:
                self._reading.read(self._engine.model, self._engine.device)
                return
            rows.append((self._reading.source, self._reading.row))
            requests.append(self._reading.request)
            self._reading = None
        while self._waiting and len(self._rows) + len(rows) < self._max_rows and len(rows) < MAX_NEW_ROWS and budget > 0:
            source = self._waiting.popleft()
            row = source.take()
            if row is None:
                continue
            self._waiting.append(source)  # requests take turns
            if len(row.request.prompt) > PREFILL_TOKENS:
                self._reading = _Reading(source, row)
                break
            rows.append((source, row))
            requests.append(row.request)
            budget -= len(row.request.prompt)
        self._rows |= dict(zip(self._engine.admit(requests), rows, strict=True))
