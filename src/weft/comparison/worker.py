"""A worker: trains and evaluates runs of a comparison that it shares with other workers, on this host and on others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from weft import files
from weft.comparison.cells import HOST_CODES, MAX_HOST_FAILURES, Cells
from weft.comparison.lease import BEATS, FAILED, Lease
from weft.comparison.plan import FailedRun, PlannedRun
from weft.comparison.train import (
    POLL_SECONDS,
    ChildRun,
    ComparisonCallback,
    Outcome,
    Progress,
    State,
    ThreadBudget,
    lock_holder,
)
from weft.errors import TrainingInterrupted, WeftError
from weft.runs.config import RunConfig
from weft.runs.finished import is_finished
from weft.runs.resolve import resolve

MAX_LOOK_SECONDS = 2.0  # between two looks at the leases
LIFE = 0.5  # of the lease time: a training process that gets no message for this time saves and stops
INTERRUPTED = (129, 130, 143)  # exit codes of a training process that a signal stopped


class Idle(Exception):
    """There is nothing to take, and the worker does not wait for the others."""


class LeaseLost(Exception):
    """Another worker may own the run by now."""


Check = Callable[[], None]  # raises an error if the work is to be stopped
Evaluate = Callable[[PlannedRun, Check], FailedRun | None]


class WorkerOptions(NamedTuple):
    """How a worker works."""

    waits: bool = True  # for the runs of the other workers
    evaluate: Evaluate | None = None  # evaluates a trained run and stores the results
    check_host: Check = lambda: None  # raises an error if this host must not train


DEFAULTS = WorkerOptions()


class Renewable(Protocol):
    def renew(self) -> object: ...


@dataclass(eq=False)
class Claim:
    """A run that this worker owns."""

    planned: PlannedRun
    config: RunConfig
    lease: Lease
    child: ChildRun | None = None

    def renew(self) -> None:
        if self.lease.renew() and self.child is not None:
            self.child.keep_alive(LIFE * self.lease.content.seconds)


class Heartbeat:
    """Renews the leases of a worker in a thread, while its main thread trains and evaluates."""

    def __init__(self, claims: Sequence[Renewable], interval: float) -> None:
        """`claims` may change while the thread runs."""
        self.claims, self.interval = claims, interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            for claim in list(self.claims):
                claim.renew()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        self._thread.join(timeout=self.interval)


class SharedTrainer:
    """Trains the runs that no other worker trains, `budget.jobs` at a time, until all runs have ended."""

    def __init__(
        self, budget: ThreadBudget, callback: ComparisonCallback, cells: Cells, options: WorkerOptions = DEFAULTS
    ) -> None:
        self.budget, self.callback, self.cells, self.options = budget, callback, cells, options
        self.claims: list[Claim] = []
        self._ended: dict[str, Outcome] = {}
        self._configs: dict[str, RunConfig] = {}
        self._notes: set[str] = set()
        self._look_time = float("-inf")

    def train(self, plan: Sequence[PlannedRun]) -> list[Outcome]:
        """The outcome of each run, in the order of the plan. Raises TrainingInterrupted if the callback stops it, after its
        runs have saved, and Idle if there is nothing to take and it must not wait."""
        files.make_directories(self.cells.root)
        self.cells.make_directory()
        files.make_subdirectory(self.budget.comparison_dir)
        for planned in plan:
            self._read(planned)
        with Heartbeat(self.claims, self.cells.leases.seconds / BEATS):
            try:
                while len(self._ended) < len(plan):
                    self._step(plan)
            finally:
                self._stop()
        return [self._ended[planned.output_dir.name] for planned in plan]

    def _step(self, plan: Sequence[PlannedRun]) -> None:
        is_idle = self._look(plan) and not self.claims
        if is_idle and not self.options.waits and len(self._ended) < len(plan):
            raise Idle
        self._poll(plan)
        self._check_stop()

    def _read(self, planned: PlannedRun) -> None:
        """Read the configuration of a run; an invalid one has failed for all workers."""
        name = planned.output_dir.name
        try:
            self._configs[name] = resolve(planned.values, base=planned.output_dir.parent)
        except WeftError as error:
            self._end(Outcome(planned, error.exit_code, str(error)))

    def _end(self, outcome: Outcome) -> None:
        self._ended[outcome.planned.output_dir.name] = outcome
        self.callback.on_run_end(outcome)

    def _check_stop(self) -> None:
        if self.callback.should_stop():
            raise TrainingInterrupted("", "training was interrupted")

    # ---- taking runs

    def _look(self, plan: Sequence[PlannedRun]) -> bool:
        """Look at the other workers' runs and take free ones; returns whether it looked and found none."""
        if time.monotonic() - self._look_time < min(MAX_LOOK_SECONDS, self.cells.leases.seconds / 10):
            return False
        self._look_time = time.monotonic()
        numbers, own, has_taken = self.cells.leases.numbers(), {claim.lease.name for claim in self.claims}, False
        for planned in plan:
            name = planned.output_dir.name
            if name in self._ended or name in own:
                continue
            if (outcome := self.cells.outcome(planned)) is not None:
                self._end(outcome)
            elif len(self.claims) < self.budget.jobs and self._is_unlocked(planned):
                lease = self.cells.claim(planned, numbers.get(name, 0))
                has_taken = has_taken or lease is not None
                if lease is not None:
                    self._begin(Claim(planned, self._configs[name], lease))
        return not has_taken

    def _is_unlocked(self, planned: PlannedRun) -> bool:
        """Whether no process of a comparison without workers is still saving the run."""
        if (holder := lock_holder(planned.output_dir)) is None:
            return True
        self._note(f"{holder}; waiting for it")
        return False

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self.callback.on_note(text)

    def _begin(self, claim: Claim) -> None:
        """Start a run that was taken."""
        planned, lease = claim.planned, claim.lease
        self.claims.append(claim)
        if self.cells.outcome(planned) is not None:  # ended between the look and the claim
            return self._release(claim)
        if (failure := self.cells.failure(lease)) is not None:
            return self._record(claim, failure.code, failure.reason)
        self.options.check_host()
        if is_finished(planned.output_dir, claim.config):
            return self._complete(claim)
        previous = self.cells.previous_owner(lease)
        if previous is not None and previous.is_held:
            worker = previous.worker
            start = f"; resuming at step {lease.content.step:,}" if lease.content.step else ""
            self.callback.on_note(f"{lease.name}: taken over from {worker.host} (process {worker.process}){start}")
        path = self.cells.prepare(planned, lease)
        budget = self.budget._replace(jobs=max(1, self.budget.jobs))
        claim.child = ChildRun(planned._replace(output_dir=path), claim.config, budget)
        claim.child.keep_alive(LIFE * lease.content.seconds)

    # ---- runs of this worker

    def _poll(self, plan: Sequence[PlannedRun]) -> None:
        """Wait a moment, then look at the own runs."""
        time.sleep(POLL_SECONDS)
        for claim in list(self.claims):
            if not claim.lease.check():
                self._lose(claim)
            elif claim.child is not None and (outcome := claim.child.outcome()) is not None:
                claim.child = None
                self._on_child_end(claim, outcome)
        self.callback.on_runs([self._state(planned) for planned in plan])

    def _state(self, planned: PlannedRun) -> State:
        name = planned.output_dir.name
        child = next((claim.child for claim in self.claims if claim.lease.name == name), None)
        if child is not None:
            return State(planned, child.progress(), True)
        return State(planned, Progress(float(name in self._ended)), False)

    def _on_child_end(self, claim: Claim, outcome: Outcome) -> None:
        if outcome.code == 0:
            self._complete(claim)
        elif outcome.code in INTERRUPTED:
            self._release(claim)
        elif outcome.code in HOST_CODES:
            self._fail(claim, outcome.code, outcome.reason)
        else:
            self._record(claim, outcome.code, outcome.reason)

    def _complete(self, claim: Claim) -> None:
        """Publish a trained run and evaluate it."""

        def check() -> None:
            if not claim.lease.check():
                raise LeaseLost
            self._check_stop()

        try:
            check()
            self.cells.publish(claim.planned, claim.lease, claim.config)
            failure = None if self.options.evaluate is None else self.options.evaluate(claim.planned, check)
        except LeaseLost:
            return self._lose(claim)
        except TrainingInterrupted:
            raise
        except WeftError as error:
            record = self._fail if error.exit_code in HOST_CODES else self._record
            return record(claim, error.exit_code, str(error))
        if failure is None:
            self._record(claim, 0)
        else:
            self._record(claim, failure.code, failure.reason)

    def _fail(self, claim: Claim, code: int, reason: str) -> None:
        """A failure that may be the host's: the run is tried once more, possibly on another host."""
        if len(self.cells.host_failures(claim.lease)) + 1 >= MAX_HOST_FAILURES:
            return self._record(claim, code, reason)
        self.callback.on_note(f"{claim.lease.name}: failed here ({reason}); it is tried once more")
        self.claims.remove(claim)
        claim.lease.end(FAILED, code, reason)

    def _record(self, claim: Claim, code: int, reason: str = "") -> None:
        self.cells.record(claim.planned, code, reason)
        self._release(claim)
        self._end(self.cells.outcome(claim.planned) or Outcome(claim.planned, code, reason))

    def _release(self, claim: Claim) -> None:
        self.claims.remove(claim)
        claim.lease.end()

    def _lose(self, claim: Claim) -> None:
        """Stop a run that another worker owns, or may own. What this worker has written is in its own directory."""
        self.callback.on_note(f"{claim.lease.name}: lease lost ({claim.lease.lost}); stopped training it")
        if claim.child is not None:
            claim.child.kill()
        self._release(claim)

    def _stop(self) -> None:
        """Let all runs save, and release them."""
        children = [claim.child for claim in self.claims if claim.child is not None]
        for child in children:
            child.stop()
        for child in children:
            child.wait()
        for claim in list(self.claims):
            self._release(claim)
