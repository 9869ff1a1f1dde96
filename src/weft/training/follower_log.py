"""The log of a process that does not write the run directory, except its part of checkpoints: another one of its group does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from weft.training.background_save import BackgroundSaver
from weft.training.loop import Loop
from weft.training.train_state import TrainState


class FollowerLog:
    """Writes the files of this process to checkpoints, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.saver = BackgroundSaver(path)  # of the run directory

    def restore(self, train_state: TrainState, metrics: bytes = b"") -> list[str]:
        return []

    def log(self, record: dict[str, Any]) -> int:
        return 0

    def write_samples(self, records: Sequence[Mapping[str, Any]]) -> int:
        return 0

    def reserve(self, loop: Loop) -> None:
        self.saver.reserve(loop)

    def save(self, loop: Loop) -> None:
        self.saver.save(loop, before=lambda: None, after=lambda: None)

    def keep_best(self, loop: Loop, model: nn.Module) -> None:
        return None

    def raise_error(self) -> None:
        self.saver.raise_error()

    def finish(self) -> None:
        self.saver.finish()

    def close(self) -> None:
        self.saver.close()
