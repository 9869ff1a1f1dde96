"""Training the runs of a comparison: each an ordinary `weft train` in a process of its own, some at a time."""

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
from weft.training.loop import LINES

POLL_SECONDS = 0.2  # seconds between two looks at the runs
READ = 1.0  # seconds between two looks into the files of one
VALID = "valid_"


class Progress(NamedTuple):
    """How far a run has come."""

    fraction: float  # from 0 to 1
    valid: tuple[str, float] | None = None  # name and value of the latest validation score


class State(NamedTuple):
    planned: PlannedRun
    progress: Progress
    running: bool


class Outcome(NamedTuple):
    """How a run ended."""

    planned: PlannedRun
    code: int  # 0: it is trained
    reason: str = ""  # one line, where it is not


class ComparisonCallback(Protocol):
    """Who looks on: the command line, or nobody."""

    def on_note(self, text: str) -> None: ...

    def on_runs(self, states: Sequence[State]) -> None:
        """Where all of them stand, many times a second."""

    def on_run_end(self, outcome: Outcome) -> None: ...

    def should_stop(self) -> bool: ...


class ThreadBudget(NamedTuple):
    """What the runs may use, and where what they say is kept."""

    comparison_dir: Path  # of their run files
    jobs: int = 1  # at a time
    threads: int = 1  # of all of them together
    command: Sequence[str] = (sys.executable, "-P", "-m", "weft.cli.child_process")  # -P: nothing from the current folder

    @property
    def each(self) -> int:
        return max(1, self.threads // self.jobs)


Finished = Callable[[Path, RunConfig], bool]


def progress(output_dir: Path, table: TrainConfig) -> Progress:
    """How far the run in `out` has come, from metrics.jsonl; where that is damaged, the run itself will say so."""
    found = list[dict[str, Any]]()
    with suppress(ModelError, ResourceError):
        found = read_log(output_dir / "metrics.jsonl")
    trained = [record for record in found if {"step", "epoch", "tokens"} <= record.keys()]
    scores = [score for record in found for score in _valid(record, table.monitor)]
    return Progress(_share(trained, table), scores[-1] if scores else None)


def _valid(record: dict[str, Any], monitor: str | None) -> list[tuple[str, float]]:
    """The validation score that decides, if it is in a record."""
    scores = [(name.removeprefix(VALID), value) for name, value in record.items() if name.startswith(VALID)]
    return [(name, value) for name, value in scores if monitor in (None, name) and isinstance(value, float)][:1]


def _share(trained: list[dict[str, Any]], table: TrainConfig) -> float:
    if not trained:
        return 0.0
    last = trained[-1]
    if table.max_steps is not None:
        return min(1.0, float(last["step"] / table.max_steps))
    if table.max_tokens is not None:
        return min(1.0, float(last["tokens"] / table.max_tokens))
    lines = len(trained) / LINES  # a line for each such part of the budget, unless there are fewer steps
    return min(1.0, max(lines, last["epoch"] / table.max_epochs if table.max_epochs is not None else 0.0))


def lock_holder(output_dir: Path) -> str | None:
    """Who works on the run, if anybody does: a process of a comparison that was killed may still be saving."""
    if not output_dir.is_dir():
        return None
    try:
        with Lock(output_dir):
            return None
    except InUseError as error:
        return str(error)
    except ResourceError:  # a full disk, a folder that can't be written: nobody to wait for, and the run itself will say it
        return None


class _Child:
    """One run, in its process."""

    def __init__(self, planned: PlannedRun, config: RunConfig, room: ThreadBudget) -> None:
        self.planned, self.table = planned, config.train
        run_file, self.said = (
            room.comparison_dir / f"{planned.output_dir.name}.toml",
            room.comparison_dir / f"{planned.output_dir.name}.txt",
        )
        files.write_text(run_file, tomli_w.dumps(planned.values))
        words = ["train", str(run_file), "--output-dir", str(planned.output_dir), "--quiet", "--threads", str(room.each)]
        with os.fdopen(files.open_own(self.said), "wb") as said:
            said.truncate()
            # a session of its own: Ctrl-C reaches it through us, once; standard input: it ends if we are killed
            self.process = subprocess.Popen(
                [*room.command, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        self._seen, self._read = Progress(0.0), float("-inf")

    def progress(self) -> Progress:
        if time.monotonic() - self._read > READ:
            self._seen, self._read = progress(self.planned.output_dir, self.table), time.monotonic()
        return self._seen

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        self.wait()
        if code == 0:
            return Outcome(self.planned, 0)
        lines = [line for line in self.said.read_text(errors="replace").split("\n") if line]
        reason = lines[-1].removeprefix("weft: ") if lines else f"its process ended with {code}"
        return Outcome(self.planned, code if code > 0 else 1, reason)

    def wait(self) -> None:
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)


class ParallelTrainer:
    """Trains runs, `room.jobs` at a time; what an earlier process finished is kept, what it began goes on."""

    def __init__(self, room: ThreadBudget, callback: ComparisonCallback, finished: Finished) -> None:
        self.budget, self.callback, self.finished = room, callback, finished
        self._known: dict[Path, Progress] = {}
        self._held: set[Path] = set()  # runs that somebody else works on

    def train(self, plan: Sequence[PlannedRun]) -> list[Outcome]:
        """How each of them ended, in the order of the plan; raises TrainingInterrupted when the watcher wants it, all
        having saved."""
        room = self.budget._replace(jobs=max(1, min(self.budget.jobs, len(plan))))  # fewer runs have more threads each
        files.make_directories(room.comparison_dir.parent)
        files.own_directory(room.comparison_dir)
        ended, waiting = dict[Path, Outcome](), list[tuple[PlannedRun, RunConfig]]()
        for planned in plan:
            found = self._begun(planned)
            if isinstance(found, Outcome):
                ended[planned.output_dir] = found
            else:
                waiting.append((planned, found))
                self._known[planned.output_dir] = progress(planned.output_dir, found.train)
        running = list[_Child]()
        try:
            while waiting or running:
                self._start(waiting, running, room)
                self._look(plan, running, ended)
                if self.callback.should_stop():
                    self._stop(running)
                    raise TrainingInterrupted("", "training was interrupted")
        finally:
            self._stop(running)  # an error of our own: nothing goes on without us
        return [ended[planned.output_dir] for planned in plan]

    def _begun(self, planned: PlannedRun) -> Outcome | RunConfig:
        """What the run file means, or how the run has ended before."""
        try:
            config = resolve(planned.values, base=planned.output_dir.parent)
            return Outcome(planned, 0) if self.finished(planned.output_dir, config) else config
        except WeftError as error:
            outcome = Outcome(planned, error.exit_code, str(error))
            self.callback.on_run_end(outcome)
            return outcome

    def _start(self, waiting: list[tuple[PlannedRun, RunConfig]], running: list[_Child], room: ThreadBudget) -> None:
        for planned, config in list(waiting):
            if len(running) == room.jobs:
                return
            if (held := lock_holder(planned.output_dir)) is None:
                waiting.remove((planned, config))
                running.append(_Child(planned, config, room))
            elif planned.output_dir not in self._held:
                self._held.add(planned.output_dir)
                self.callback.on_note(f"{held}; waiting for it")

    def _look(self, plan: Sequence[PlannedRun], running: list[_Child], ended: dict[Path, Outcome]) -> None:
        """Wait a moment, and say where all runs stand."""
        time.sleep(POLL_SECONDS)
        for child in list(running):
            if (outcome := child.outcome()) is not None:
                running.remove(child)
                ended[child.planned.output_dir] = outcome
                self.callback.on_run_end(outcome)
        here = {child.planned.output_dir: child.progress() for child in running}
        self._known |= here | {output_dir: Progress(1.0) for output_dir in ended}
        self.callback.on_runs([State(one, self._known[one.output_dir], one.output_dir in here) for one in plan])

    def _stop(self, running: list[_Child]) -> None:
        for child in running:
            child.stop()
        for child in list(running):
            child.wait()
            running.remove(child)
