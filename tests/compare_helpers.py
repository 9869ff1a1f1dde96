"""`weft compare`, called as its tests call it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small_runs import Silent

from weft.cli.main import main
from weft.comparison.plan import PlannedRun
from weft.comparison.train import Outcome
from weft.errors import WeftError
from weft.runs.finished import is_finished
from weft.runs.job import train
from weft.runs.resolve import resolve


class Here:
    """Trains in this process, which costs no seconds for each run."""

    trained: list[str]

    def __init__(self, budget: Any, callback: Any, is_finished: Any) -> None:
        self.callback = callback

    def train(self, plan: Sequence[PlannedRun]) -> list[Outcome]:
        return [self._one(planned) for planned in plan]

    def _one(self, planned: PlannedRun) -> Outcome:
        try:
            settings = resolve(planned.values, base=Path())
            if not is_finished(planned.output_dir, settings):
                Here.trained.append(planned.output_dir.name)
                train(planned.values, planned.output_dir, base=Path(), callback=Silent())
        except WeftError as error:
            outcome = Outcome(planned, error.exit_code, str(error))
            self.callback.on_run_end(outcome)
            return outcome
        return Outcome(planned, 0)


def compare(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["compare", *words])
    said = capsys.readouterr()
    return code, said.out, said.err
