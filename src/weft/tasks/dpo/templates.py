"""The run file of direct preference optimization that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

ARCHS = ("gpt", "transformer", "lstm", "gru", "mingru", "minlstm", "rnn")
TEMPLATE = TaskTemplate(
    archs=ARCHS,
    data={"train": "train.jsonl", "valid": 0.1, "test": 0.1},
    files="JSONL or tables with the columns prompt, chosen and rejected",
    use=("weft chat runs/run", "talk to the model"),
    fine_tuned=ARCHS,
    hidden=("bidirectional",),
)
