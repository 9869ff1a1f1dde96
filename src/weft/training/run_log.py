"""Write logs, checkpoints and the best weights during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weft import log
from weft.errors import ResourceError
from weft.resources import peak_memory
from weft.tensors import write_layout
from weft.training import loop_checkpoint as saving
from weft.training import sample_outputs as samples
from weft.training.background_save import WEIGHTS, BackgroundSaver
from weft.training.loop import Loop
from weft.training.snapshot import Snapshot, TensorFile
from weft.training.train_state import TrainState

if TYPE_CHECKING:
    from weft.runs.run_dir import RunDir


class RunLogWriter:
    """Writes logs, checkpoints and weights to the run directory."""

    def __init__(
        self, run_dir: RunDir, vocabulary: str, *, data: Mapping[str, str] | None = None, tensorboard: bool = False
    ) -> None:
        self.run_dir, self.vocabulary = run_dir, vocabulary
        checksums = {"vocabulary": run_dir.vocabulary_checksums(), "data": dict(data or {})}  # stored in every checkpoint
        self.open_board = board_opener(run_dir.path / "tensorboard") if tensorboard else None
        self.board: Any = None
        self.metrics = log.Log(run_dir.path / "metrics.jsonl")
        self.timings = log.Log(run_dir.path / "timings.jsonl")
        self.samples: log.Log | None = None  # opened for the first samples
        self.saver = BackgroundSaver(run_dir.path, checksums)

    def restore(self, train_state: TrainState, metrics: bytes = b"") -> list[str]:
        """Restore the logs to their state at a checkpoint, whose metrics log is `metrics`. Of a corrupted samples.jsonl, the
        intact part is kept: nothing depends on it.

        Returns:
            A note for each log that was corrupted.
        """
        notes = []
        if self.metrics.restore(metrics):
            notes.append(f"{self.metrics.path}: corrupted; restored from the checkpoint")
        if train_state.samples or (self.run_dir.path / samples.FILE).exists():
            expected, train_state.samples = train_state.samples, self._samples().truncate(train_state.samples)
            if train_state.samples < expected:
                notes.append(f"{self._samples().path}: corrupted; only the intact part was restored")
        return notes

    def _samples(self) -> log.Log:
        self.samples = self.samples or log.Log(self.run_dir.path / samples.FILE)
        return self.samples

    def write_samples(self, records: Sequence[Mapping[str, Any]]) -> int:
        for record in records:
            self._samples().write(record)
        return self._samples().num_bytes

    def log(self, record: dict[str, Any]) -> int:
        self.metrics.write(record)
        if self.board is None and self.open_board is not None:
            # discards the steps that a killed process logged after its last checkpoint: they are logged again
            self.board = self.open_board(record["step"])
        for name, value in record.items():
            if self.board is not None and name not in ("step", "epoch"):
                self.board.add_scalar(name, value, record["step"])
        return self.metrics.num_bytes

    # ---- checkpoints and weights, in the background

    def reserve(self, loop: Loop) -> None:
        # sharded tensors have no address, by which tied tensors are recognized: those of one shape would count once
        self.saver.reserve(loop, self._weights(loop, loop.replica.outdated_model()))

    def save(self, loop: Loop) -> None:
        train_state = loop.train_state
        timing = {
            "step": train_state.step,
            "seconds": train_state.seconds,
            "tokens_per_second": train_state.tokens / train_state.seconds if train_state.seconds else None,
            "peak_memory": torch.cuda.max_memory_allocated() if loop.device_config.device.type == "cuda" else peak_memory(),
            **({} if loop.timing.latest is None else {"group": loop.timing.latest.to_json()}),
        }
        self.saver.save(loop, before=self._sync, after=partial(self.timings.write, timing))

    def keep_best(self, loop: Loop, model: nn.Module) -> None:
        snapshot = self.saver.submit(loop, WEIGHTS, self._weights(loop, model), self._write_weights)
        if model is not loop.loss_module.model:  # a copy, which keeps these weights until the next one is made
            loop.replica.reader = snapshot
        elif loop.ema is not None:  # after the validation, the model has other weights
            snapshot.wait()

    def _weights(self, loop: Loop, model: nn.Module) -> dict[str, TensorFile]:
        metadata = self.run_dir.weights_metadata(self.vocabulary, loop.train_state.step)
        return {WEIGHTS: saving.weights_file(model, metadata)}

    def _sync(self) -> None:
        self.metrics.sync()
        if self.samples is not None:
            self.samples.sync()

    def _write_weights(self, snapshot: Snapshot) -> None:
        snapshot.finish()
        write_layout(self.run_dir.weights, snapshot.layouts[WEIGHTS], partial(snapshot.data, WEIGHTS))
        self.run_dir.backup.delete()

    def raise_error(self) -> None:
        self.saver.raise_error()

    def finish(self) -> None:
        self.saver.finish()

    def close(self) -> None:
        self.saver.close()
        self.metrics.close()
        self.timings.close()
        if self.samples is not None:
            self.samples.close()
        if self.board is not None:
            self.board.close()


def board_opener(path: Path) -> Callable[[int], Any]:
    """A function that opens a writer of TensorBoard event files and discards all points from a step on."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ResourceError(
            "train.tensorboard", "package tensorboard is not installed", "run pip install tensorboard"
        ) from None
    return lambda step: SummaryWriter(path, purge_step=step)
