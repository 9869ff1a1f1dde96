"""What an engine counts, for `/metrics`. Written by its thread alone, except `refused`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from weft.serve.errors import Cancelled
from weft.serve.ticket import Ticket

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds


class Histogram:
    """Counts of values up to each of `BUCKETS`, their sum and their number."""

    def __init__(self) -> None:
        self.counts, self.total, self.number = [0] * len(BUCKETS), 0.0, 0

    def add(self, value: float) -> None:
        for index, limit in enumerate(BUCKETS):
            self.counts[index] += value <= limit
        self.total += value
        self.number += 1


class Counters:
    """Totals since the engine started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # by run, operation and result
        self.prompt_tokens: Counter[str] = Counter()  # by run
        self.output_tokens: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()  # of lanes
        self.batches: Counter[tuple[str, str]] = Counter()  # calls of gathered operations, by run and operation
        self.batch_inputs: Counter[tuple[str, str]] = Counter()
        self.reloads: Counter[tuple[str, str]] = Counter()  # by run and result
        self.seconds: dict[tuple[str, str], Histogram] = {}  # of requests, by run and operation
        self.first_token_seconds: dict[tuple[str, str], Histogram] = {}
        self.wait_seconds: dict[tuple[str, str], Histogram] = {}  # before a request starts
        self.refused = 0
        self.mean_seconds = 0.1  # a moving average of the time of a request

    def ended(self, ticket: Ticket[Any]) -> None:
        """Count a request that has ended."""
        result = "ok" if ticket.error is None else "cancelled" if isinstance(ticket.error, Cancelled) else "error"
        key, timing = (ticket.run, ticket.operation), ticket.timing
        self.requests[*key, result] += 1
        self.prompt_tokens[ticket.run] += ticket.prompt_tokens
        self.output_tokens[ticket.run] += ticket.output_tokens
        if timing.started is not None:
            self.wait_seconds.setdefault(key, Histogram()).add(timing.started - timing.submitted)
        if timing.first_token is not None:
            self.first_token_seconds.setdefault(key, Histogram()).add(timing.first_token - timing.submitted)
        if timing.ended is not None and result == "ok":
            seconds = timing.ended - timing.submitted
            self.seconds.setdefault(key, Histogram()).add(seconds)
            self.mean_seconds += 0.05 * (seconds - self.mean_seconds)
