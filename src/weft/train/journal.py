"""What is written down while a run is trained by gradients: logs, checkpoints, the best weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weft import log
from weft.errors import ResourceError
from weft.machine import most_used
from weft.train import samples, saving
from weft.train.cursor import Cursor
from weft.train.loop import Loop

if TYPE_CHECKING:
    from weft.runs.folder import RunFolder


class Journal:
    """Writes a run down while it is trained by gradients."""

    def __init__(
        self, folder: RunFolder, vocabulary: str, *, data: Mapping[str, str] | None = None, tensorboard: bool = False
    ) -> None:
        self.folder, self.vocabulary = folder, vocabulary
        self.known = {"beside": folder.meanings(), "data": dict(data or {})}  # goes into every checkpoint
        self.open_board = board_opener(folder.path / "tensorboard") if tensorboard else None
        self.board: Any = None
        self.metrics = log.Log(folder.path / "metrics.jsonl")
        self.timings = log.Log(folder.path / "timings.jsonl")
        self.samples: log.Log | None = None  # few runs have any

    def restore(self, cursor: Cursor, kept: bytes = b"") -> list[str]:
        """Make the logs what they were when the checkpoint of a cursor was written, which has `kept` the metrics; what was
        damaged, in words. Nothing follows from the texts of samples.jsonl: what is whole of them stays."""
        told = []
        if self.metrics.restore(kept):
            told.append(f"{self.metrics.path}: was damaged; its lines are those of the checkpoint again")
        if cursor.samples or (self.folder.path / samples.FILE).exists():
            known, cursor.samples = cursor.samples, self._samples().keep(cursor.samples)
            if cursor.samples < known:
                told.append(f"{self._samples().path}: was damaged; it has the texts before the damage alone")
        return told

    def _samples(self) -> log.Log:
        self.samples = self.samples or log.Log(self.folder.path / samples.FILE)
        return self.samples

    def write_samples(self, records: Sequence[Mapping[str, Any]]) -> int:
        for record in records:
            self._samples().write(record)
        return self._samples().length

    def log(self, record: dict[str, Any]) -> int:
        self.metrics.write(record)
        if self.board is None and self.open_board is not None:
            # what a killed process logged after its last checkpoint comes again, from this step on
            self.board = self.open_board(record["step"])
        for name in record:
            if self.board is not None and name not in ("step", "epoch"):
                self.board.add_scalar(name, record[name], record["step"])
        return self.metrics.length

    def save(self, loop: Loop) -> None:
        self.metrics.sync()
        if self.samples is not None:
            self.samples.sync()
        saving.save(loop, self.folder.path, self.known)
        cursor = loop.cursor
        self.timings.write(
            {
                "step": cursor.step,
                "seconds": cursor.seconds,
                "tokens_per_second": cursor.tokens / cursor.seconds if cursor.seconds else None,
                "peak_memory": torch.cuda.max_memory_allocated() if loop.place.device.type == "cuda" else most_used(),
            }
        )

    def keep_best(self, model: nn.Module, step: int) -> None:
        self.folder.write_weights(model.state_dict(), self.vocabulary, step)

    def close(self) -> None:
        self.metrics.close()
        self.timings.close()
        if self.samples is not None:
            self.samples.close()
        if self.board is not None:
            self.board.close()


def board_opener(path: Path) -> Callable[[int], Any]:
    """What opens a writer of TensorBoard event files that takes the place of all points from a step on."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ResourceError('train.tensorboard: needs the package tensorboard: pip install "weft[tensorboard]"') from None
    return lambda step: SummaryWriter(path, purge_step=step)
