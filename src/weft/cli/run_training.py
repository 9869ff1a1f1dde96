"""Training for commands: progress, interrupts, and the result."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import format_duration, print_error, status, write_json
from weft.errors import ModelError
from weft.runs.finished import is_finished, remove_on_failure

if TYPE_CHECKING:
    from weft.parallel.group import Group
    from weft.runs.config import RunConfig
    from weft.runs.recommend import Recommendation


@dataclass(frozen=True)
class RunTraining:
    """Trains a run file into a run directory, or resumes it."""

    base: Path  # the directory that paths in the run file are relative to
    output_dir: Path
    overwrite: bool
    json: bool
    quiet: bool

    def run(self, values: dict[str, Any], completed: Recommendation, group: Group | None = None) -> int:
        """Train the run file `values`, whose recommended options are `completed`, and return the exit code. The processes of
        `group` train together."""
        from weft.parallel.group import ALONE
        from weft.runs.run_dir import RunDir

        group = group or ALONE

        finished = not self.overwrite and is_finished(self.output_dir, completed.config)
        group.announce("finished", finished)
        if finished:
            self._check_weights()
            RunDir(self.output_dir).drop_backup()
            self._summarize(completed.config)
            return 0
        start = time.monotonic()
        code = self._train(values, completed, group)
        if code == 0:
            self._summarize(completed.config, seconds=time.monotonic() - start)
        return code

    def follow(self, values: dict[str, Any], group: Group) -> int:
        """Train as one of the processes that neither print nor write; returns the exit code."""
        from weft.cli.display import Display
        from weft.cli.progress import TrainProgress
        from weft.cli.signals import Stop
        from weft.errors import TrainingInterrupted
        from weft.runs.job import JobInputs, train

        if group.await_leader("finished"):
            return 0
        with Stop(action="") as stop, Display(quiet=True) as display:
            try:
                progress, inputs = TrainProgress(display, stop), JobInputs(group=group)
                train(values, self.output_dir, base=self.base, callback=progress, inputs=inputs)
            except (TrainingInterrupted, KeyboardInterrupt):
                return stop.exit_code
        return 0

    def _check_weights(self) -> None:
        """Refuse to call a run trained if it cannot be read."""
        from weft.runs.load import load

        try:
            load(self.output_dir, device="cpu").info()  # needs the weights
        except ModelError as error:
            raise ModelError(error.where, error.problem, "use `overwrite` to train it again") from None

    def _train(self, values: dict[str, Any], completed: Recommendation, group: Group) -> int:
        from weft.cli.display import Display
        from weft.cli.progress import TrainProgress
        from weft.cli.signals import Stop
        from weft.cli.threads import threads
        from weft.errors import TrainingInterrupted
        from weft.runs.job import JobInputs, train
        from weft.runs.run_dir import RunDir

        directory = RunDir(self.output_dir)
        had_backup, replaces = directory.backup.exists(), self.overwrite and os.path.isfile(directory.resolved)
        with remove_on_failure(self.output_dir), Stop() as stop, Display(quiet=self.quiet) as display:
            progress = TrainProgress(display, stop, completed.config, self.output_dir)
            try:
                train(
                    values,
                    self.output_dir,
                    base=self.base,
                    callback=progress,
                    overwrite=self.overwrite,
                    inputs=JobInputs(group=group, threads=threads()),
                    completed=completed,
                )
            except TrainingInterrupted:
                display.clear()
                where = f" at step {progress.step:,}" if progress.step else ""  # word vectors have no steps
                display.line(f"Stopped{where}. Saved to {self.output_dir}. {self._how_to_resume()}")
                return stop.exit_code
            except KeyboardInterrupt:
                display.clear()
                message = f"{self.output_dir} is unchanged." if replaces else "Run the same command to start again."
                if had_backup and not directory.backup.exists():
                    message = f"The previous run is back in {self.output_dir}."
                display.line(f"Stopped before the first step. {message}")
                return stop.exit_code
        return 0

    def _how_to_resume(self) -> str:
        from weft.runs.run_dir import RunDir

        backup = RunDir(self.output_dir).backup
        backup_note = f" The previous run is in {backup.path} until this one has weights." if backup.exists() else ""
        return f"Run the same command{' without --overwrite' if self.overwrite else ''} to resume.{backup_note}"

    def _summarize(self, config: RunConfig, *, seconds: float | None = None) -> None:
        """Print the result; without `seconds` the run was trained before."""
        from weft.runs.status import read_run_status

        run_status = read_run_status(self.output_dir)
        if self.json:
            duration = {} if seconds is None else {"seconds": round(seconds, 3)}
            if seconds is None:
                status(self._already_trained(run_status.steps), quiet=self.quiet)
            write_json({"run": str(self.output_dir), **run_status.to_json(), **duration})
            return
        if self.quiet:
            return
        lines = [] if seconds is None or run_status.is_fitted else [""]
        if seconds is None:
            lines.append(self._already_trained(run_status.steps))
        if run_status.best is not None and not (run_status.is_fitted and seconds is not None):
            metric, value = run_status.best
            step = "" if run_status.is_fitted else f" at step {run_status.best_step:,}"
            lines.append(f"Best valid {metric.label} {metric.format(value)}{step}")
        if seconds is not None:
            lines.append(f"Run saved to {self.output_dir} ({format_duration(seconds)})")
        name = shlex.quote(str(self.output_dir))  # can be pasted into a shell
        has_test_data, use = len(config.datasets) > 1, config.spec.command
        lines.append(f"Next: weft evaluate {name}{'' if has_test_data else ' --data FILE'}")
        lines.append(f"      weft {use} {name} {config.spec.example_input}".rstrip())
        print_error("\n".join(lines))

    def _already_trained(self, steps: int) -> str:
        count = f" ({steps:,} step{'' if steps == 1 else 's'})" if steps else ""
        return f"{self.output_dir} is already trained{count}. Use --overwrite to train it again."
