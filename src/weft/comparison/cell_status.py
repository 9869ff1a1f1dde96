"""The state of the runs of a comparison that workers share, for people to read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from weft.comparison.cells import Cells
from weft.comparison.lease import LeaseContent, file_system_time, lease_path
from weft.comparison.plan import PlannedRun
from weft.comparison.train import progress
from weft.errors import WeftError
from weft.runs.resolve import resolve

WAITING, TRAINING, EVALUATING, EXPIRED = "waiting", "training", "evaluating", "expired"
TRAINED, FAILED = "trained", "failed"


class CellStatus(NamedTuple):
    """The state of one run."""

    run: str
    state: str
    host: str = ""  # of the owner, or that ended it
    process: int | None = None  # of the owner
    fraction: float | None = None  # of the training
    lease_age: float | None = None  # seconds since the owner renewed it, by the clock of the file system
    reason: str = ""  # of a failure


def read_cells(cells: Cells, plan: Sequence[PlannedRun]) -> list[CellStatus]:
    """The state of each run of the plan."""
    numbers = cells.leases.numbers()
    time_now = file_system_time(cells.directory) if numbers else 0.0
    return [_status(cells, planned, numbers.get(planned.output_dir.name, 0), time_now) for planned in plan]


def _status(cells: Cells, planned: PlannedRun, number: int, time_now: float) -> CellStatus:
    name = planned.output_dir.name
    if (ended := cells.ended(name)) is not None:
        return CellStatus(name, FAILED if ended.code else TRAINED, ended.host, reason=ended.reason)
    owner = cells.leases.read(name, number) if number else None
    if owner is None or not owner.is_held:
        return CellStatus(name, WAITING, fraction=_fraction(cells, planned) or None)
    return _owned(cells, planned, owner, number, time_now)


def _owned(cells: Cells, planned: PlannedRun, owner: LeaseContent, number: int, time_now: float) -> CellStatus:
    name = planned.output_dir.name
    age: float | None = None
    with suppress(OSError):  # it has ended meanwhile
        age = max(0.0, time_now - os.stat(lease_path(cells.directory, name, number)).st_mtime)
    state = TRAINING if cells.run_dirs(name) else EVALUATING if planned.output_dir.is_dir() else TRAINING
    state = EXPIRED if age is not None and age > owner.seconds else state
    worker = owner.worker
    return CellStatus(name, state, worker.host, worker.process, _fraction(cells, planned), age)


def _fraction(cells: Cells, planned: PlannedRun) -> float:
    with suppress(WeftError, OSError):
        config = resolve(planned.values, base=planned.output_dir.parent)
        return progress(cells.current_dir(planned), config.train).fraction
    return 0.0
