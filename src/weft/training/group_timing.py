"""Where the time of a group of processes goes: computing, or exchanging values and waiting for each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from weft.parallel.group import Group
from weft.resources import peak_memory
from weft.training.data_parallel import Replica


class GroupSummary(NamedTuple):
    """The steps since the last summary. In a group, all processes take equally long for a step: the slowest one computes the
    longest, and waits the least."""

    processes: int
    slowest: str  # rank and host of the process that computes the longest
    seconds_per_step: float
    compute_seconds: list[float]  # per step, by rank
    exchange_fraction: float  # the mean fraction of the time in which a process exchanges values or waits
    exchanged_bytes: int  # gradients and weights that a process sends per step
    peak_memory: list[int]  # bytes, by rank

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class GroupTiming:
    """Adds up the time of the steps of this process."""

    def __init__(self, group: Group, replica: Replica, device: torch.device) -> None:
        self.group, self.replica, self.device = group, replica, device
        self.latest: GroupSummary | None = None
        self._start()

    def _start(self) -> None:
        self.seconds, self.steps, self.exchanged = 0.0, 0, self.group.seconds

    def add(self, seconds: float) -> None:
        """Add the time of a step."""
        self.seconds, self.steps = self.seconds + seconds, self.steps + 1

    def summarize(self) -> None:
        """Compute `latest` from the times of all processes, which must all call it; one process alone has none."""
        if self.group.size == 1 or not self.steps:
            return
        exchanged = self.group.seconds - self.exchanged + self.steps * self.replica.waiting_seconds()
        memory = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else peak_memory()
        rows = self.group.gather([max(0.0, self.seconds - exchanged) / self.steps, self.seconds / self.steps, memory])
        compute, seconds, memories = ([row[index] for row in rows] for index in range(3))
        self.latest = GroupSummary(
            processes=self.group.size,
            slowest=self.group.name(compute.index(max(compute))),
            seconds_per_step=max(seconds),
            compute_seconds=compute,
            exchange_fraction=1 - sum(compute) / max(sum(seconds), 1e-9),
            exchanged_bytes=self.replica.exchanged_bytes,
            peak_memory=memories,
        )
        self._start()


def agree(group: Group, *, should_stop: bool, is_late: bool) -> tuple[bool, bool]:
    """Whether any process should stop, and whether a checkpoint is late by the clock of the first process."""
    if group.size == 1:
        return should_stop, is_late
    stops, late = group.sum_(torch.tensor([should_stop, is_late and group.leads], dtype=torch.float64)).tolist()
    return stops > 0, late > 0
