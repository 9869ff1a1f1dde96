"""Checkpoints and weights are copied, and a thread writes the copies while training goes on.

They are written in the order in which they were copied. So the weights that a checkpoint refers to are on disk before it, and a
kill leaves what it would leave if training waited for each write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from weft.parallel.group import Group
from weft.training import loop_checkpoint as saving
from weft.training.background import BackgroundThread
from weft.training.loop import Loop
from weft.training.snapshot import SMALL_BYTES, HostBuffers, Snapshot, TensorFile

CHECKPOINT, WEIGHTS = "checkpoint", "weights"
Write = Callable[[Snapshot], None]


class BackgroundSaver:
    """Copies and writes the checkpoints of a process. At most one checkpoint is being written: the next one waits for it."""

    def __init__(self, run_dir: Path, checksums: Mapping[str, Any] | None = None) -> None:
        self.run_dir, self.checksums = run_dir, checksums or {}
        self.copier, self.writer = BackgroundThread("weft-copy"), BackgroundThread("weft-save")
        self._buffers: HostBuffers | None = None
        self._group: Group | None = None  # exchanges of the thread that writes, apart from those of training

    def reserve(self, loop: Loop, weights: Mapping[str, TensorFile] | None = None) -> None:
        """Allocate the memory for the copies of checkpoints, and of `weights`, in the background."""
        for name, content in ((CHECKPOINT, saving.contents(loop).files), (WEIGHTS, weights or {})):
            snapshot = Snapshot(content, self._host_buffers(loop), prefix=name)
            if snapshot.num_bytes() > SMALL_BYTES:
                self.copier.submit(f"reserve {name}", snapshot.reserve)

    def save(self, loop: Loop, *, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Save a checkpoint; `before` and `after` are called in the thread that writes it. All processes of a group call it."""
        self._group = self._group or loop.group.duplicate()
        group, shard = self._group, saving.contents(loop)
        content = saving.CheckpointContent.of(loop, shard)

        def write(snapshot: Snapshot) -> None:
            before()
            saving.write(snapshot, content, self.run_dir, self.checksums, group)
            after()

        self.submit(loop, CHECKPOINT, shard.files, write)

    def submit(self, loop: Loop, name: str, content: Mapping[str, TensorFile], write: Write) -> Snapshot:
        """Copy tensors and write them in the background, after the last copy of this name was written."""
        self.writer.wait(name)
        self.raise_error()
        snapshot = Snapshot(content, self._host_buffers(loop), prefix=name)
        snapshot.start(self.copier)
        loop.copies.append(snapshot)
        self.writer.submit(name, partial(write, snapshot))
        if not snapshot.is_copied:
            self.writer.wait(name)
            self.raise_error()
        return snapshot

    def _host_buffers(self, loop: Loop) -> HostBuffers | None:
        """The memory for copies; None if there is not enough."""
        if self._buffers is None and loop.copies_state:
            self._buffers = HostBuffers(loop.device_config.device)
        return self._buffers

    def raise_error(self) -> None:
        self.copier.raise_error()
        self.writer.raise_error()

    def finish(self) -> None:
        self.writer.wait()
        self.raise_error()

    def close(self) -> None:
        self.copier.close()
        self.writer.close()
