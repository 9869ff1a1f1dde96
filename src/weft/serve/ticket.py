"""A request in the engine: what is asked, who is told, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from weft.errors import WeftError
from weft.serve.errors import Unavailable

R = TypeVar("R")
_numbers = count(1)


@dataclass
class Timing:
    """Times of a ticket, in seconds of `time.monotonic`; None: not yet."""

    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None


class Ticket(Generic[R]):
    """A request that was submitted. `on_event` and `on_end` are called by the thread of the engine and must not block.

    Attributes:
        number: Unique in the process.
        run, operation: The name of the run, and what is asked of it.
        prompt_tokens, output_tokens: Numbers of tokens, for operations that generate.
    """

    def __init__(
        self,
        run: str,
        job: Any,
        *,
        seconds: float,
        on_event: Callable[[Any], None] | None = None,
        on_end: Callable[[Ticket[R]], None] | None = None,
        wake: Callable[[Ticket[R]], None],
    ) -> None:
        self.number, self.run, self.job, self.seconds = next(_numbers), run, job, seconds
        self.on_event, self.on_end, self._wake = on_event, on_end, wake
        self.timing, self.prompt_tokens, self.output_tokens = Timing(), 0, 0
        self.is_cancelled = False
        self._ended = threading.Event()
        self._result: R | None = None
        self.error: WeftError | None = None

    @property
    def operation(self) -> str:
        operation: str = self.job.operation
        return operation

    @property
    def deadline(self) -> float:
        """When its time is over."""
        return self.timing.submitted + self.seconds

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def wants_events(self) -> bool:
        return self.on_event is not None

    def cancel(self) -> None:
        """Give the request up. Its rows are free after the current step; no effect if it has ended."""
        self.is_cancelled = True
        self._wake(self)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result; raises the error that ended the request."""
        if not self._ended.wait(timeout):
            raise Unavailable(f"run {self.run}", f"no result after {timeout:g} seconds")
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]  # set, if there is no error

    # ---- called by the engine

    def start(self) -> None:
        """Note that computing has begun."""
        if self.timing.started is None:
            self.timing.started = time.monotonic()

    def note_token(self) -> None:
        """Note that there is a token."""
        if self.timing.first_token is None:
            self.timing.first_token = time.monotonic()

    def emit(self, event: Any) -> None:
        """Pass an event on."""
        if self.on_event is not None:
            self.on_event(event)

    def end(self, result: R | None = None, error: WeftError | None = None) -> bool:
        """Set the result or the error, and tell who waits. False if it had ended already."""
        if self._ended.is_set():
            return False
        self._result, self.error, self.timing.ended = result, error, time.monotonic()
        self._ended.set()
        if self.on_end is not None:
            self.on_end(self)
        return True


class Finish(Protocol):
    """Ends a ticket with its result, or with the error that it caused."""

    def __call__(self, ticket: Ticket[Any], result: Any, error: Exception | None = None) -> None: ...
