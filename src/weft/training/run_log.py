"""Write logs, checkpoints and the best weights during training.

Checkpoints and weights are copied, and a thread writes the copies in the order in which they were made. So the weights that a
checkpoint refers to are on disk before it, and a kill leaves what it would leave if training waited for each write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from weft import log
from weft.errors import ResourceError
from weft.resources import peak_memory
from weft.tensors import write_layout
from weft.training import loop_checkpoint as saving
from weft.training import sample_outputs as samples
from weft.training.background import BackgroundThread
from weft.training.loop import Loop
from weft.training.snapshot import SMALL_BYTES, HostBuffers, Snapshot, TensorFile
from weft.training.train_state import TrainState

if TYPE_CHECKING:
    from weft.runs.run_dir import RunDir


class RunLogWriter:
    """Writes logs, checkpoints and weights to the run directory."""

    def __init__(
        self, run_dir: RunDir, vocabulary: str, *, data: Mapping[str, str] | None = None, tensorboard: bool = False
    ) -> None:
        self.run_dir, self.vocabulary = run_dir, vocabulary
        self.checksums = {"vocabulary": run_dir.vocabulary_checksums(), "data": dict(data or {})}  # stored in every checkpoint
        self.open_board = board_opener(run_dir.path / "tensorboard") if tensorboard else None
        self.board: Any = None
        self.metrics = log.Log(run_dir.path / "metrics.jsonl")
        self.timings = log.Log(run_dir.path / "timings.jsonl")
        self.samples: log.Log | None = None  # opened for the first samples
        self.copier, self.writer = BackgroundThread("weft-copy"), BackgroundThread("weft-save")
        self.buffers: HostBuffers | None = None

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
        """Allocate the memory for copies in the background."""
        content = {"checkpoint": saving.contents(loop), "weights": self._weights(loop)}
        for name, files_of in content.items():
            snapshot = Snapshot(files_of, self._buffers_of(loop), prefix=name)
            if snapshot.num_bytes() > SMALL_BYTES:
                self.copier.submit(f"reserve {name}", snapshot.reserve)

    def save(self, loop: Loop) -> None:
        train_state = loop.train_state
        timing = {
            "step": train_state.step,
            "seconds": train_state.seconds,
            "tokens_per_second": train_state.tokens / train_state.seconds if train_state.seconds else None,
            "peak_memory": torch.cuda.max_memory_allocated() if loop.device_config.device.type == "cuda" else peak_memory(),
        }
        state = train_state.to_json()
        self._submit(loop, "checkpoint", saving.contents(loop), partial(self._write_checkpoint, state, timing))

    def keep_best(self, loop: Loop) -> None:
        snapshot = self._submit(loop, "weights", self._weights(loop), self._write_weights)
        if loop.ema is not None:  # the averages leave the model after the validation
            snapshot.wait()

    def _weights(self, loop: Loop) -> dict[str, TensorFile]:
        metadata = self.run_dir.weights_metadata(self.vocabulary, loop.train_state.step)
        return {"weights": saving.weights_file(loop, metadata)}

    def _buffers_of(self, loop: Loop) -> HostBuffers | None:
        """The memory for copies; None if there is not enough."""
        if self.buffers is None and loop.copies_state:
            self.buffers = HostBuffers(is_pinned=loop.device_config.device.type == "cuda")
        return self.buffers

    def _submit(self, loop: Loop, name: str, content: Mapping[str, TensorFile], write: Callable[[Snapshot], None]) -> Snapshot:
        """Copy tensors and write them in the background, after the last copy of this name was written."""
        self.writer.wait(name)
        self.raise_error()
        snapshot = Snapshot(content, self._buffers_of(loop), prefix=name)
        snapshot.start(self.copier)
        loop.copies.append(snapshot)
        self.writer.submit(name, partial(write, snapshot))
        if not snapshot.is_copied:
            self.writer.wait(name)
            self.raise_error()
        return snapshot

    def _write_checkpoint(self, train_state: Mapping[str, Any], timing: Mapping[str, Any], snapshot: Snapshot) -> None:
        self.metrics.sync()
        if self.samples is not None:
            self.samples.sync()
        saving.write(snapshot, train_state, self.run_dir.path, self.checksums)
        self.timings.write(timing)

    def _write_weights(self, snapshot: Snapshot) -> None:
        snapshot.finish()
        write_layout(self.run_dir.weights, snapshot.layouts["weights"], partial(snapshot.data, "weights"))
        self.run_dir.backup.delete()

    def raise_error(self) -> None:
        self.copier.raise_error()
        self.writer.raise_error()

    def finish(self) -> None:
        self.writer.wait()
        self.raise_error()

    def close(self) -> None:
        self.copier.close()
        self.writer.close()
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
