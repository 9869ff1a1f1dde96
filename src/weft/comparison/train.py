"""Training the runs of a comparison: each is a `weft train` in its own process, several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import tomli_w

from weft import files
from weft.comparison.plan import PlannedRun
from weft.errors import InUseError, ModelError, ResourceError, TrainingInterrupted, WeftError
from weft.lock import Lock
from weft.log import read_log
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.training.config import TrainConfig
from weft.training.loop import LOG_LINES

POLL_SECONDS = 0.2  # between two checks of the processes
READ_SECONDS = 1.0  # between two reads of the log of one run
VALID = "valid_"


class Progress(NamedTuple):
    """The progress of a run."""

    fraction: float  # from 0 to 1
    valid: tuple[str, float] | None = None  # name and value of the latest monitored metric


class State(NamedTuple):
    planned: PlannedRun
    progress: Progress
    running: bool


class Outcome(NamedTuple):
    """The end of a run."""

    planned: PlannedRun
    code: int  # exit code; 0: trained
    reason: str = ""  # why it failed, on one line


class ComparisonCallback(Protocol):
    """Receives the progress of the runs."""

    def on_note(self, text: str) -> None: ...

    def on_runs(self, states: Sequence[State]) -> None:
        """The state of all runs, several times per second."""

    def on_run_end(self, outcome: Outcome) -> None: ...

    def should_stop(self) -> bool: ...


class ThreadBudget(NamedTuple):
    """The resources that the runs may use, and the directory of their run files and error output."""

    comparison_dir: Path  # for run files
    jobs: int = 1  # runs at a time
    threads: int = 1  # for all runs
    # -P: import nothing from the current directory
    command: Sequence[str] = (sys.executable, "-P", "-m", "weft.cli.child_process")

    @property
    def threads_per_run(self) -> int:
        return max(1, self.threads // self.jobs)


IsFinished = Callable[[Path, RunConfig], bool]
BeforeStart = Callable[[PlannedRun], PlannedRun | Outcome]  # the run as it is to be trained now, or why it is not


def as_planned(planned: PlannedRun) -> PlannedRun:
    return planned


def progress(output_dir: Path, table: TrainConfig) -> Progress:
    """The progress of the run in `output_dir`, from metrics.jsonl; if that is damaged, the run itself reports it."""
    records = list[dict[str, Any]]()
    with suppress(ModelError, ResourceError):
        records = read_log(output_dir / "metrics.jsonl")
    trained = [record for record in records if {"step", "epoch", "tokens"} <= record.keys()]
    scores = [score for record in records for score in _monitored_score(record, table.monitor)]
    return Progress(_fraction(trained, table), scores[-1] if scores else None)


def _monitored_score(record: dict[str, Any], monitor: str | None) -> list[tuple[str, float]]:
    """Name and value of the monitored metric, if the record has it."""
    scores = [(name.removeprefix(VALID), value) for name, value in record.items() if name.startswith(VALID)]
    return [(name, value) for name, value in scores if monitor in (None, name) and isinstance(value, float)][:1]


def _fraction(trained: list[dict[str, Any]], table: TrainConfig) -> float:
    if not trained:
        return 0.0
    last = trained[-1]
    if table.max_steps is not None:
        return min(1.0, float(last["step"] / table.max_steps))
    if table.max_tokens is not None:
        return min(1.0, float(last["tokens"] / table.max_tokens))
    lines = len(trained) / LOG_LINES  # the log has this many lines per budget, unless there are fewer steps
    return min(1.0, max(lines, last["epoch"] / table.max_epochs if table.max_epochs is not None else 0.0))


def lock_holder(output_dir: Path) -> str | None:
    """The process that has locked the run, or None: a process of a killed comparison may still be saving."""
    if not output_dir.is_dir():
        return None
    try:
        with Lock(output_dir):
            return None
    except InUseError as error:
        return f"{error.where}: {error.problem}"
    except ResourceError:  # full disk or read-only directory: nothing to wait for, the run itself reports it
        return None


class ChildRun:
    """One run in its own process."""

    def __init__(self, planned: PlannedRun, config: RunConfig, budget: ThreadBudget) -> None:
        self.planned, self.table = planned, config.train
        run_file = budget.comparison_dir / f"{planned.output_dir.name}.toml"
        self.stderr_file = budget.comparison_dir / f"{planned.output_dir.name}.txt"
        files.write_text(run_file, tomli_w.dumps(planned.values))
        arguments = [
            "train",
            str(run_file),
            "--output-dir",
            str(planned.output_dir),
            "--quiet",
            "--threads",
            str(budget.threads_per_run),
        ]
        with os.fdopen(files.open_for_update(self.stderr_file), "wb") as stderr:
            stderr.truncate()
            # its own session: Ctrl-C reaches it only through this process; stdin: it ends if this process is killed
            self.process = subprocess.Popen(
                [*budget.command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        self._progress, self._read_time = Progress(0.0), float("-inf")

    def progress(self) -> Progress:
        if time.monotonic() - self._read_time > READ_SECONDS:
            self._progress, self._read_time = progress(self.planned.output_dir, self.table), time.monotonic()
        return self._progress

    def outcome(self) -> Outcome | None:
        """The outcome; None while the run is running."""
        code = self.process.poll()
        if code is None:
            return None
        self.wait()
        if code == 0:
            return Outcome(self.planned, 0)
        lines = [line for line in self.stderr_file.read_text(errors="replace").split("\n") if line]
        reason = (
            lines[-1].removeprefix("weft: ").removeprefix("error: ") if lines else f"the process ended with exit code {code}"
        )
        return Outcome(self.planned, code if code > 0 else 1, reason)

    def wait(self) -> None:
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process without saving."""
        self.process.kill()
        self.wait()

    def keep_alive(self, seconds: float) -> None:
        """Tell the process to save and stop unless it is told again within some seconds: this process may be paused."""
        if self.process.stdin is not None:
            with suppress(OSError, ValueError):  # it has ended
                os.write(self.process.stdin.fileno(), f"{seconds:.3f}\n".encode())


class ParallelTrainer:
    """Trains runs, `budget.jobs` at a time; finished runs of an earlier process are kept, unfinished ones resume."""

    def __init__(
        self,
        budget: ThreadBudget,
        callback: ComparisonCallback,
        is_finished: IsFinished,
        before_start: BeforeStart = as_planned,
    ) -> None:
        self.budget, self.callback, self.is_finished, self.before_start = budget, callback, is_finished, before_start
        self._progress: dict[Path, Progress] = {}
        self._locked: set[Path] = set()  # runs that another process works on

    def train(self, plan: Sequence[PlannedRun]) -> list[Outcome]:
        """The outcome of each run, in the order of the plan; raises TrainingInterrupted if the callback stops it, after all
        runs have saved."""
        budget = self.budget._replace(jobs=max(1, min(self.budget.jobs, len(plan))))  # fewer runs get more threads each
        files.make_directories(budget.comparison_dir.parent)
        files.make_subdirectory(budget.comparison_dir)
        ended, waiting = dict[Path, Outcome](), list[tuple[PlannedRun, RunConfig]]()
        for planned in plan:
            config = self._check(planned)
            if isinstance(config, Outcome):
                ended[planned.output_dir] = config
            else:
                waiting.append((planned, config))
                self._progress[planned.output_dir] = progress(planned.output_dir, config.train)
        running = list[ChildRun]()
        try:
            while waiting or running:
                self._start(waiting, running, ended, budget)
                self._poll(plan, running, ended)
                if self.callback.should_stop():
                    self._stop(running)
                    raise TrainingInterrupted("", "training was interrupted")
        finally:
            self._stop(running)  # after an error in this process, no run continues
        return [ended[planned.output_dir] for planned in plan]

    def _check(self, planned: PlannedRun) -> Outcome | RunConfig:
        """The configuration of the run, or its outcome if it has already ended or is invalid."""
        try:
            config = resolve(planned.values, base=planned.output_dir.parent)
            return Outcome(planned, 0) if self.is_finished(planned.output_dir, config) else config
        except WeftError as error:
            outcome = Outcome(planned, error.exit_code, str(error))
            self.callback.on_run_end(outcome)
            return outcome

    def _start(
        self,
        waiting: list[tuple[PlannedRun, RunConfig]],
        running: list[ChildRun],
        ended: dict[Path, Outcome],
        budget: ThreadBudget,
    ) -> None:
        for planned, config in list(waiting):
            if len(running) == budget.jobs:
                return
            if (holder := lock_holder(planned.output_dir)) is None:
                waiting.remove((planned, config))
                self._start_one(planned, running, ended, budget)
            elif planned.output_dir not in self._locked:
                self._locked.add(planned.output_dir)
                self.callback.on_note(f"{holder}; waiting for it")

    def _start_one(
        self, planned: PlannedRun, running: list[ChildRun], ended: dict[Path, Outcome], budget: ThreadBudget
    ) -> None:
        run = self.before_start(planned)
        if isinstance(run, Outcome):
            ended[planned.output_dir] = run
            self.callback.on_run_end(run)
        else:
            running.append(ChildRun(run, resolve(run.values, base=run.output_dir.parent), budget))

    def _poll(self, plan: Sequence[PlannedRun], running: list[ChildRun], ended: dict[Path, Outcome]) -> None:
        """Wait a moment, then report the state of all runs."""
        time.sleep(POLL_SECONDS)
        for child in list(running):
            if (outcome := child.outcome()) is not None:
                running.remove(child)
                ended[child.planned.output_dir] = outcome
                self.callback.on_run_end(outcome)
        current = {child.planned.output_dir: child.progress() for child in running}
        self._progress |= current | {output_dir: Progress(1.0) for output_dir in ended}
        self.callback.on_runs([State(run, self._progress[run.output_dir], run.output_dir in current) for run in plan])

    def _stop(self, running: list[ChildRun]) -> None:
        for child in running:
            child.stop()
        for child in list(running):
            child.wait()
            running.remove(child)
