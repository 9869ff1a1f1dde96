"""`weft train`: train a run file into a run directory, or resume."""

from __future__ import annotations

import math
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, ModelCommand, Overrides, RunFile
from weft.cli.output import format_duration, print_error, status, write_json
from weft.errors import ModelError, UsageError
from weft.runs.finished import is_finished, remove_on_failure

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.recommend import Recommendation

# an example of the command that uses a trained run, by the command


@dataclass(kw_only=True)
class Train(ModelCommand):
    """Train a model from a run file, or resume training.

    The same command resumes a run that was stopped. Ctrl-C saves and stops; press it twice to stop at once.
    """

    run_file: RunFile
    overrides: Overrides = None
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Train the best model that this machine can train in N minutes, chosen by a short trial.",
        ),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the existing run and start over.")] = False
    tokenizer_from: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Use the tokenizer of another run, so that results are comparable."),
    ] = None
    init_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Start from the weights and tokenizer of another run.")
    ] = None
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.  [default: runs/NAME]"
        ),
    ] = None

    def run(self) -> int:
        from weft.config import override, read_toml
        from weft.runs.job import with_tokenizer_from, with_tokenizer_of_init
        from weft.runs.run_dir import RunDir

        values = override(read_toml(self.run_file), self.overrides or [])
        if self.init_from is not None:
            values = {**values, "train": {**values.get("train", {}), "init_from": str(self.init_from.absolute())}}
        if self.tokenizer_from is not None:
            values = with_tokenizer_from(values, self.tokenizer_from)
        elif self.init_from is not None:
            values = with_tokenizer_of_init(values, self.init_from)
        output_dir = self.output_dir or Path("runs") / self.run_file.stem
        # a wrong run file is refused before anything else
        completed = self._complete(values, output_dir)
        config = completed.config
        if not self.overwrite and is_finished(output_dir, config):
            self._check_weights(output_dir)
            RunDir(output_dir).drop_backup()
            self._summarize(output_dir, config)
            return 0
        start = time.monotonic()
        code = self._train(values, completed, output_dir)
        if code == 0:
            self._summarize(output_dir, config, seconds=time.monotonic() - start)
        return code

    def _complete(self, values: dict[str, Any], output_dir: Path) -> Recommendation:
        """The run file with the recommended options, for --minutes by a trial. A run that has begun keeps its options."""
        from weft.runs.recommend import complete, has_begun

        base = self.run_file.parent
        if self.minutes is None or (has_begun(output_dir, values) and not self.overwrite):
            return complete(values, output_dir, base=base, overwrite=self.overwrite)
        from weft.cli.display import Display
        from weft.cli.progress import TrainProgress
        from weft.cli.signals import Stop
        from weft.runs.trial import recommend_within

        if not 0 < self.minutes < math.inf:
            raise UsageError("minutes", f"must be greater than 0, got {self.minutes:g}")
        with Stop() as stop, Display(quiet=self.quiet) as display:
            return recommend_within(values, self.minutes, base=base, callback=TrainProgress(display, stop))

    def _check_weights(self, output_dir: Path) -> None:
        """Refuse to call a run trained if it cannot be read."""
        from weft.runs.load import load

        try:
            load(output_dir, device="cpu").info()  # needs the weights
        except ModelError as error:
            raise ModelError(error.where, error.problem, "use `overwrite` to train it again") from None

    def _train(self, values: dict[str, Any], completed: Recommendation, output_dir: Path) -> int:
        from weft.cli.display import Display
        from weft.cli.progress import TrainProgress
        from weft.cli.signals import Stop
        from weft.errors import TrainingInterrupted
        from weft.runs.job import train
        from weft.runs.run_dir import RunDir

        directory = RunDir(output_dir)
        had_backup, replaces = directory.backup.exists(), self.overwrite and os.path.isfile(directory.resolved)
        with remove_on_failure(output_dir), Stop() as stop, Display(quiet=self.quiet) as display:
            progress = TrainProgress(display, stop, completed.config, output_dir)
            try:
                train(
                    values,
                    output_dir,
                    base=self.run_file.parent,
                    callback=progress,
                    overwrite=self.overwrite,
                    completed=completed,
                )
            except TrainingInterrupted:
                display.clear()
                display.line(f"Stopped at step {progress.step:,}. Saved to {output_dir}. {self._how_to_resume(output_dir)}")
                return stop.exit_code
            except KeyboardInterrupt:
                display.clear()
                message = f"{output_dir} is unchanged." if replaces else "Run the same command to start again."
                if had_backup and not directory.backup.exists():
                    message = f"The previous run is back in {output_dir}."
                display.line(f"Stopped before the first step. {message}")
                return stop.exit_code
        return 0

    def _how_to_resume(self, output_dir: Path) -> str:
        from weft.runs.run_dir import RunDir

        backup = RunDir(output_dir).backup
        backup_note = f" The previous run is in {backup.path} until this one has weights." if backup.exists() else ""
        return f"Run the same command{' without --overwrite' if self.overwrite else ''} to resume.{backup_note}"

    def _summarize(self, output_dir: Path, config: RunConfig, *, seconds: float | None = None) -> None:
        """Print the result; without `seconds` the run was trained before."""
        from weft.runs.status import read_run_status

        run_status = read_run_status(output_dir)
        if self.json:
            duration = {} if seconds is None else {"seconds": round(seconds, 3)}
            if seconds is None:
                status(self._already_trained(output_dir, run_status.steps), quiet=self.quiet)
            write_json({"run": str(output_dir), **run_status.to_json(), **duration})
            return
        if self.quiet:
            return
        lines = [] if seconds is None or run_status.is_fitted else [""]
        if seconds is None:
            lines.append(self._already_trained(output_dir, run_status.steps))
        if run_status.best is not None and not (run_status.is_fitted and seconds is not None):
            metric, value = run_status.best
            step = "" if run_status.is_fitted else f" at step {run_status.best_step:,}"
            lines.append(f"Best valid {metric.label} {metric.format(value)}{step}")
        if seconds is not None:
            lines.append(f"Run saved to {output_dir} ({format_duration(seconds)})")
        name = shlex.quote(str(output_dir))  # can be pasted into a shell
        has_test_data, use = len(config.datasets) > 1, config.spec.command
        lines.append(f"Next: weft evaluate {name}{'' if has_test_data else ' --data FILE'}")
        lines.append(f"      weft {use} {name} {config.spec.example_input}")
        print_error("\n".join(lines))

    def _already_trained(self, output_dir: Path, steps: int) -> str:
        count = f" ({steps:,} step{'' if steps == 1 else 's'})" if steps else ""
        return f"{output_dir} is already trained{count}. Use --overwrite to train it again."
