"""The log of a process that does not write the run directory: another one of its group does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from weft.training import loop_checkpoint as saving
from weft.training.loop import Loop
from weft.training.train_state import TrainState


class FollowerLog:
    """Writes nothing, and takes part in what all processes must do together."""

    def __init__(self, path: Path) -> None:
        self.path = path  # of the run directory

    def restore(self, train_state: TrainState, metrics: bytes = b"") -> list[str]:
        return []

    def log(self, record: dict[str, Any]) -> int:
        return 0

    def write_samples(self, records: Sequence[Mapping[str, Any]]) -> int:
        return 0

    def save(self, loop: Loop) -> None:
        saving.save(loop, self.path)

    def keep_best(self, model: nn.Module, step: int) -> None:
        return None

    def close(self) -> None:
        return None
