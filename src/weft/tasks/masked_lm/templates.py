"""The run file of masked language models that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("transformer", "bert", "lstm"),
    data={"train": "train.txt", "valid": 0.05, "test": 0.05},
    files="text files, directories or patterns",
    use=('weft predict runs/run "A [MASK] text"', "predict masked tokens"),
    hidden=("bidirectional",),
)
