"""`weft train`: train a run file into a run directory, or resume."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, ModelCommand, Overrides, Processes, RunFile
from weft.cli.run_training import RunTraining
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.runs.recommend import Recommendation


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
    processes: Processes = None
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

    def num_processes(self) -> int:
        return self.processes or 1

    def run(self) -> int:
        from weft.cli.group import before_joining, check_same_run, device_of, joined
        from weft.cli.memory import keep_freed_memory

        keep_freed_memory()
        with before_joining():
            values = self._values()
            device = device_of(values)
        output_dir = self.output_dir or Path("runs") / self.run_file.stem
        training = RunTraining(self.run_file.parent, output_dir, overwrite=self.overwrite, json=self.json, quiet=self.quiet)
        with joined(device) as group:
            check_same_run(group, values, device)
            if not group.leads:
                return training.follow(values, group)
            # a wrong run file is refused before anything else
            completed = self._complete(values, output_dir)
            return training.run(values, completed, group)

    def _values(self) -> dict[str, Any]:
        """The run file with what the command line changes."""
        from weft.config import BUDGETS, override, read_toml
        from weft.runs.job import with_tokenizer_from, with_tokenizer_of_init

        values = override(read_toml(self.run_file), self.overrides or [])
        given = override({}, self.overrides or []).get("train", {})
        if self.minutes is not None and (budgets := [name for name in BUDGETS if name in given]):
            raise UsageError("minutes", f"cannot be combined with train.{budgets[0]} in --set", "leave out one of them")
        if self.init_from is not None:
            values = {**values, "train": {**values.get("train", {}), "init_from": str(self.init_from.absolute())}}
        if self.tokenizer_from is not None:
            values = with_tokenizer_from(values, self.tokenizer_from)
        elif self.init_from is not None:
            values = with_tokenizer_of_init(values, self.init_from)
        return values

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
