"""Lanes: rows of many requests that one run decodes together, one token per step (continuous batching).

Requests with different options share the steps. A row enters when another one has left, requests take turns, and a long prompt
is read in parts, one per step, so that it delays nobody for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from weft.decode.beam import BeamEngine, BeamRequest, Hypothesis
from weft.decode.engine import Engine, Event, Request
from weft.decode.incremental import IncrementalModel
from weft.serve.ticket import Ticket

PREFILL_TOKENS = 256  # tokens of prompts that are read between two steps
MAX_NEW_ROWS = 32  # rows that enter between two steps
# sentences per step that a new one waits for others: to read two together costs hardly more than to read one
SENTENCES_PER_WAIT = 8
R = TypeVar("R", covariant=True)
Fail = Callable[[Ticket[Any], Exception], None]  # ends a ticket with an error


class Row(Protocol):
    """A row that is sampled."""

    @property
    def request(self) -> Request: ...

    def push(self, event: Event, top: Sequence[tuple[int, float]]) -> bool:
        """Take a new token, and the most probable ones if they are wanted. True if the row has ended, also before the engine
        ends it, such as by a stop string."""


class Sentence(Protocol):
    """A sentence that is searched with beams."""

    @property
    def request(self) -> BeamRequest: ...

    @property
    def source(self) -> Any:
        """What is encoded before the search, by the encoder of the lane; None: nothing."""

    def finish(self, hypotheses: list[Hypothesis]) -> None:
        """Take the result."""


class Source(Protocol[R]):
    """The rows or sentences of one ticket."""

    @property
    def ticket(self) -> Ticket[Any]: ...

    def take(self) -> R | None:
        """The next one; None after the last. An error is an error of the ticket."""


T = TypeVar("T")


class Turns(Generic[T]):
    """Sources that wait, and take turns."""

    def __init__(self, fail: Fail) -> None:
        self._sources: deque[Source[T]] = deque()
        self._fail = fail

    def __bool__(self) -> bool:
        return bool(self._sources)

    def add(self, source: Source[T]) -> None:
        self._sources.append(source)

    def tickets(self) -> list[Ticket[Any]]:
        return [source.ticket for source in self._sources]

    def cancel(self, ticket: Ticket[Any]) -> None:
        self._sources = deque(source for source in self._sources if source.ticket is not ticket)

    def take(self) -> tuple[Source[T], T] | None:
        """The next row of the source whose turn it is; None if nothing waits."""
        while self._sources:
            source = self._sources.popleft()
            try:
                row = source.take()
            except Exception as error:  # of this ticket alone
                self._fail(source.ticket, error)
                continue
            if row is not None:
                self._sources.append(source)
                return source, row
        return None


class _Reading:
    """A row whose long prompt is read in parts."""

    def __init__(self, source: Source[Row], row: Row) -> None:
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


class Lane(Protocol):
    """Rows of one kind."""

    @property
    def has_work(self) -> bool:
        """Whether rows wait or are decoded."""

    @property
    def num_rows(self) -> int:
        """Rows that are decoded now."""

    def tickets(self) -> list[Ticket[Any]]:
        """Tickets with rows that wait or are decoded."""

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Remove all rows of a ticket and free their memory."""

    def tick(self) -> None:
        """Let rows enter, and generate a token of each."""


def _unique(tickets: Iterable[Ticket[Any]]) -> list[Ticket[Any]]:
    return list({ticket.number: ticket for ticket in tickets}.values())


class SampleLane:
    """Rows that are sampled or decoded greedily."""

    def __init__(self, model: IncrementalModel[Any], device: torch.device, *, max_rows: int, fail: Fail) -> None:
        self._engine: Engine[Any] = Engine(model, device)
        self._max_rows = max_rows
        self._waiting: Turns[Row] = Turns(fail)
        self._reading: _Reading | None = None
        self._rows: dict[int, tuple[Source[Row], Row]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._rows or self._waiting or self._reading)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def add(self, source: Source[Row]) -> None:
        """Let the rows of a ticket wait."""
        self._waiting.add(source)

    def tickets(self) -> list[Ticket[Any]]:
        reading = [] if self._reading is None else [self._reading.source.ticket]
        return _unique([*self._waiting.tickets(), *reading, *(source.ticket for source, _ in self._rows.values())])

    def cancel(self, ticket: Ticket[Any]) -> None:
        self._waiting.cancel(ticket)
        if self._reading is not None and self._reading.source.ticket is ticket:
            self._reading = None
        self._remove([row_id for row_id, (source, _) in self._rows.items() if source.ticket is ticket])

    def _remove(self, row_ids: Iterable[int]) -> None:
        row_ids = list(row_ids)
        self._engine.cancel_all(row_ids)
        for row_id in row_ids:
            del self._rows[row_id]

    def tick(self) -> None:
        self._admit()
        if not self._rows:
            return
        events = self._engine.step()
        top = self._engine.top_tokens
        self._remove([event.row for event in events if self._rows[event.row][1].push(event, top.get(event.row, ()))])

    def _admit(self) -> None:
        """Read prompts: the next part of a long one, or short ones."""
        rows, requests, budget = list[tuple[Source[Row], Row]](), list[Request](), PREFILL_TOKENS
        if self._reading is not None:
            if not self._reading.is_last:
                self._reading.read(self._engine.model, self._engine.device)
                return
            rows.append((self._reading.source, self._reading.row))
            requests.append(self._reading.request)
            self._reading = None
        while len(self._rows) + len(rows) < self._max_rows and len(rows) < MAX_NEW_ROWS and budget > 0:
            if (taken := self._waiting.take()) is None:
                break
            if len(taken[1].request.prompt) > PREFILL_TOKENS:
                self._reading = _Reading(*taken)
                break
            rows.append(taken)
            requests.append(taken[1].request)
            budget -= len(taken[1].request.prompt)
        self._rows |= dict(zip(self._engine.admit(requests), rows, strict=True))


class BeamLane:
    """Sentences that are searched with beams; each has as many rows as beams."""

    # of the sources of sentences, to the state of the decoder: the same for all of a run
    encode: Callable[[Sequence[Any]], Any] | None = None

    def __init__(self, model: IncrementalModel[Any], device: torch.device, *, max_rows: int, fail: Fail) -> None:
        self._engine: BeamEngine[Any] = BeamEngine(model, device)
        self._max_rows = max_rows
        self._waiting: Turns[Sentence] = Turns(fail)
        self._sentences: dict[int, tuple[Source[Sentence], Sentence]] = {}
        self._next: tuple[Source[Sentence], Sentence] | None = None  # there is no room for it yet
        self._num_waits = 0  # steps that the sentence at the front has waited for others

    @property
    def has_work(self) -> bool:
        return bool(self._sentences or self._waiting or self._next)

    @property
    def num_rows(self) -> int:
        return sum(sentence.request.options.beam_size for _, sentence in self._sentences.values())

    def add(self, source: Source[Sentence]) -> None:
        """Let the sentences of a ticket wait."""
        self._waiting.add(source)

    def tickets(self) -> list[Ticket[Any]]:
        sources = [source for source, _ in [*self._sentences.values(), *([] if self._next is None else [self._next])]]
        return _unique([*self._waiting.tickets(), *(source.ticket for source in sources)])

    def cancel(self, ticket: Ticket[Any]) -> None:
        self._waiting.cancel(ticket)
        if self._next is not None and self._next[0].ticket is ticket:
            self._next = None
        given_up = [number for number, (source, _) in self._sentences.items() if source.ticket is ticket]
        self._engine.cancel_all(given_up)
        for number in given_up:
            del self._sentences[number]

    def tick(self) -> None:
        if self._waiting or self._next:
            self._num_waits += 1
            if self._num_waits > len(self._sentences) // SENTENCES_PER_WAIT:
                self._admit()
                self._num_waits = 0
        for number, hypotheses in self._engine.step() if self._sentences else []:
            self._sentences.pop(number)[1].finish(hypotheses)

    def _admit(self) -> None:
        """Read the sources and prompts of sentences that wait, as far as there is room."""
        entering, num_rows, budget = list[tuple[Source[Sentence], Sentence]](), self.num_rows, PREFILL_TOKENS
        while len(entering) < MAX_NEW_ROWS and budget > 0:
            taken = self._next or self._waiting.take()
            self._next = None
            if taken is None:
                break
            beam_size = taken[1].request.options.beam_size
            if num_rows and num_rows + beam_size > self._max_rows:
                self._next = taken
                break
            entering.append(taken)
            num_rows += beam_size
            budget -= len(taken[1].request.prompt)
        requests, sources = [sentence.request for _, sentence in entering], [sentence.source for _, sentence in entering]
        state = None
        if self.encode is not None and entering:
            with torch.no_grad():
                state = self.encode(sources)
        self._sentences |= dict(zip(self._engine.admit(requests, state=state), entering, strict=True))
