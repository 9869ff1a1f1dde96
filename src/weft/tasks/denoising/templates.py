"""The run file of denoising that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("transformer", "lstm-input-feeding"),
    data={"train": "train.txt", "valid": 0.05, "test": 0.05},
    files="text files with one text per line, directories, patterns, or tables with a text column",
    use=('weft predict runs/run "A <mask> text"', "restore a text"),
)
