"""Helpers to run `weft compare` in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small_runs import SilentCallback

from weft.cli.main import main
from weft.comparison.plan import PlannedRun
from weft.comparison.train import BeforeStart, Outcome, as_planned
from weft.errors import WeftError
from weft.runs.finished import is_finished
from weft.runs.job import train
from weft.runs.resolve import resolve


class InProcessTrainer:
    """Trains the runs in this process: starting one process for each would take seconds."""

    trained: list[str]

    def __init__(self, budget: Any, callback: Any, is_finished: Any, before_start: BeforeStart = as_planned) -> None:
        self.callback, self.before_start = callback, before_start

    def train(self, plan: Sequence[PlannedRun]) -> list[Outcome]:
        return [self._train_run(planned) for planned in plan]

    def _train_run(self, planned: PlannedRun) -> Outcome:
        try:
            config = resolve(planned.values, base=Path())
            if not is_finished(planned.output_dir, config):
                run = self.before_start(planned)
                if isinstance(run, Outcome):
                    return run
                InProcessTrainer.trained.append(run.output_dir.name)
                train(run.values, run.output_dir, base=Path(), callback=SilentCallback())
        except WeftError as error:
            outcome = Outcome(planned, error.exit_code, str(error))
            self.callback.on_run_end(outcome)
            return outcome
        return Outcome(planned, 0)


def compare(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `weft compare`."""
    code = main(["compare", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
