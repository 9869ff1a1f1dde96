"""Requests that are computed in one call: those of the same run, operation and options."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.serve.compute import Gathered, batch_key, is_whole
from weft.serve.jobs import Explain
from weft.serve.ticket import Ticket


class Progress:
    """A ticket whose inputs are computed in one or several calls."""

    def __init__(self, ticket: Ticket[Any]) -> None:
        self.ticket, self.results = ticket, list[Any]()
        job = ticket.job
        self.inputs: Sequence[Any] = job.inputs if isinstance(job, Gathered) else [job]
        self.num_taken = 0
        self.since = time.monotonic()

    @property
    def num_left(self) -> int:
        return len(self.inputs) - self.num_taken


class Part(NamedTuple):
    """Some inputs of a ticket."""

    progress: Progress
    start: int
    stop: int


class Batch(NamedTuple):
    """Inputs of one call."""

    job: Gathered | Explain
    parts: list[Part]


class Gather:
    """The tickets of one run that wait to be computed, by what they have in common. Keys take turns."""

    def __init__(self, *, max_batch: int, seconds: float) -> None:
        self._max_batch, self._seconds = max_batch, seconds
        self._queues: dict[str, list[Progress]] = {}
        self._is_busy: dict[str, bool] = {}  # whether the latest batch of an operation had several tickets

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, ticket: Ticket[Any]) -> None:
        job = ticket.job
        is_alone = not isinstance(job, Gathered) or is_whole(job)
        key = f"{job.operation} alone {ticket.number}" if is_alone else batch_key(job)
        self._queues.setdefault(key, []).append(Progress(ticket))

    def tickets(self) -> list[Ticket[Any]]:
        return [progress.ticket for queue in self._queues.values() for progress in queue]

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Forget a ticket."""
        for key, queue in list(self._queues.items()):
            left = [progress for progress in queue if progress.ticket is not ticket]
            if left:
                self._queues[key] = left
            else:
                del self._queues[key]

    def _delay(self, key: str) -> float:
        """Seconds until the batch of a key is computed; 0 if it is full, or if requests come one after the other."""
        queue = self._queues[key]
        is_busy = self._is_busy.get(queue[0].ticket.operation, False)
        if not is_busy or sum(progress.num_left for progress in queue) >= self._max_batch or " alone " in key:
            return 0.0
        return max(0.0, queue[0].since + self._seconds - time.monotonic())

    def delay(self) -> float | None:
        """Seconds until a batch is ready; None if nothing waits."""
        return min(map(self._delay, self._queues), default=None)

    def take(self) -> Batch | None:
        """A batch that is ready, of the key that has waited longest."""
        key = next((key for key in self._queues if self._delay(key) <= 0), None)
        if key is None:
            return None
        queue, parts, room = self._queues.pop(key), list[Part](), self._max_batch
        whole = " alone " in key
        left = list[Progress]()
        for progress in queue:
            count = progress.num_left if whole else min(room, progress.num_left)
            if count or not progress.num_left:
                parts.append(Part(progress, progress.num_taken, progress.num_taken + count))
                progress.num_taken += count
                room -= count
            if progress.num_left:
                left.append(progress)
        if left:
            self._queues[key] = left  # behind the others
        self._is_busy[parts[0].progress.ticket.operation] = len(parts) > 1
        return Batch(queue[0].ticket.job, parts)
