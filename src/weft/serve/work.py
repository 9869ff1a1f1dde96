"""What the thread of an engine does between two looks at its inbox: one step of every lane, and one batch of other requests."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from weft.errors import WeftError
from weft.serve.compute import check_gathered, compute, explain
from weft.serve.counters import Counters
from weft.serve.errors import Cancelled, Unavailable
from weft.serve.gather import Batch, Part
from weft.serve.generation import BeamSource, GenerateSource, SampleSource, read_prompts
from weft.serve.jobs import Chat, Explain, Generate, Predict
from weft.serve.lane import Fail, Lane
from weft.serve.searching import SampledSource, SearchSource, predict_source
from weft.serve.served_run import ServedRun
from weft.serve.ticket import Finish, Ticket


class Worker:
    """The runs of an engine. Its methods are called by the thread of the engine, except `replace`."""

    def __init__(self, runs: dict[str, ServedRun], counters: Counters, log: Callable[[str], None]) -> None:
        self.runs, self.counters, self._log = runs, counters, log
        self._old: list[ServedRun] = []  # replaced by new weights, and not empty yet
        self.is_closed = False

    def replace(self, served: ServedRun) -> None:
        """Use new weights for all further requests."""
        self._old.append(self.runs[served.name])
        self.runs = {**self.runs, served.name: served}

    def _all(self) -> list[ServedRun]:
        return [*self.runs.values(), *self._old]

    @property
    def num_rows(self) -> int:
        return sum(served.num_rows for served in self._all())

    @property
    def is_ready(self) -> bool:
        """Whether there is something to compute now."""
        return self.is_closed or self.delay(None) == 0.0

    def delay(self, default: float | None) -> float | None:
        """Seconds until there is something to compute, at most `default`; None: nothing is known."""
        delays = [] if default is None else [default]
        for served in self._all():
            if any(lane.has_work for lane in served.lanes()):
                return 0.0
            if (delay := served.gather.delay()) is not None:
                delays.append(delay)
        return min(delays, default=None)

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Remove everything of a ticket."""
        for served in self._all():
            served.cancel(ticket)

    # ---- new tickets

    def place(self, ticket: Ticket[Any], finish: Finish) -> None:
        """Let a ticket wait in a lane or a queue of its run."""
        served, job = self.runs[ticket.run], ticket.job
        try:
            if isinstance(job, Generate | Chat):
                self._place_prompts(served, ticket, finish)
                return
            if not isinstance(job, Explain):
                check_gathered(served.run, job)
            if not (isinstance(job, Predict) and self._place_inputs(served, ticket, finish)):
                served.gather.add(ticket)
        except Exception as error:  # the server goes on
            self._report(ticket.run, error)
            finish(ticket, None, error)

    def _place_prompts(self, served: ServedRun, ticket: Ticket[Any], finish: Finish) -> None:
        prompts = read_prompts(served.run, ticket.job)
        if not prompts.tokens:
            finish(ticket, [])
            return
        shared = GenerateSource(ticket, served.run, prompts, served.processors, finish)
        if prompts.decoding.options.beam_size is None:
            served.sample_lane(_failing(finish)).add(SampleSource(shared))
        else:
            served.beam_lane(_failing(finish)).add(BeamSource(shared))

    def _place_inputs(self, served: ServedRun, ticket: Ticket[Any], finish: Finish) -> bool:
        """Let a request for predictions wait in a lane; False if its task has none, or another program searches."""
        if served.run.decoder is not None and not ticket.job.options.is_sampling:
            return False
        shared = predict_source(served.run, ticket, finish)
        if shared is None:
            return False
        if shared.is_empty:
            shared.close()
        elif shared.job.options.is_sampling:
            served.sample_lane(_failing(finish)).add(SampledSource(shared, served.processors))
        else:
            lane = served.beam_lane(_failing(finish))
            lane.encode = shared.job.request.encode_sources
            lane.add(SearchSource(shared))
        return True

    # ---- computing

    def tick(self, finish: Finish) -> None:
        """One step of each lane, and one batch of each run."""
        for served in self._all():
            for lane in served.lanes():
                if lane.has_work:
                    self._step(served, lane, finish)
            batch = served.gather.take()
            if batch is not None:
                self._compute(served, batch, finish)
        for served in [served for served in self._old if not served.has_work]:
            self._old.remove(served)  # in place: `replace` may add another one meanwhile

    def _step(self, served: ServedRun, lane: Lane, finish: Finish) -> None:
        try:
            self.counters.steps[served.name] += 1
            lane.tick()
        except Exception as error:  # the rows of the lane are lost, the server goes on
            self._report(served.name, error)
            served.drop_lane(lane)
            for ticket in lane.tickets():
                finish(ticket, None, error)

    def _compute(self, served: ServedRun, batch: Batch, finish: Finish) -> None:
        """Compute a batch. If it fails, each ticket is computed alone, so that only the one with the problem fails."""
        for part in batch.parts:
            part.progress.ticket.start()
        try:
            self._call(served, batch, finish)
        except Exception as error:
            if len(batch.parts) == 1:
                self._report(served.name, error)
                ticket = batch.parts[0].progress.ticket
                served.gather.cancel(ticket)
                finish(ticket, None, error)
                return
            for part in batch.parts:
                self._compute(served, Batch(part.progress.ticket.job, [part]), finish)

    def _call(self, served: ServedRun, batch: Batch, finish: Finish) -> None:
        job, parts = batch.job, batch.parts
        key = (served.name, job.operation)
        if isinstance(job, Explain):
            ticket = parts[0].progress.ticket
            self.counters.batches[key] += 1
            self.counters.batch_inputs[key] += 1
            until = min(ticket.deadline, time.monotonic() + served.limits.explain_seconds)
            finish(ticket, explain(served.run, served.name, job, lambda: _check(ticket, until)))
            return
        inputs = [value for part in parts for value in part.progress.inputs[part.start : part.stop]]
        numbers = [number + 1 for part in parts for number in range(part.start, part.stop)]
        results = iter(compute(served.run, job, inputs, numbers) if inputs else [])
        self.counters.batches[key] += 1
        self.counters.batch_inputs[key] += len(inputs)
        for part in parts:
            self._take(part, [next(results) for _ in range(part.start, part.stop)], finish)

    def _take(self, part: Part, results: list[Any], finish: Finish) -> None:
        progress = part.progress
        progress.results += results
        if len(progress.results) == len(progress.inputs):
            finish(progress.ticket, progress.results)

    def _report(self, name: str, error: Exception) -> None:
        """Log an error that no user caused."""
        if not isinstance(error, WeftError):
            self._log(f"run {name}: {''.join(traceback.format_exception(error))}".rstrip())


def _failing(finish: Finish) -> Fail:
    """Ends a ticket with an error."""
    return lambda ticket, error: finish(ticket, None, error)


def _check(ticket: Ticket[Any], until: float) -> None:
    """Stop an explanation that nobody waits for, or that others wait for too long."""
    if ticket.is_cancelled or ticket.has_ended:
        raise Cancelled(f"run {ticket.run}", "the request was given up")
    if (now := time.monotonic()) >= until:
        seconds = now - (ticket.timing.started or ticket.timing.submitted)
        problem = f"the explanation is not ready after {seconds:.0f} seconds"
        raise Unavailable(f"run {ticket.run}", problem, "use a shorter text", retry_after=1)
