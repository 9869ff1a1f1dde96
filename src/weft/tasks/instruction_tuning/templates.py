"""The run file of instruction tuning that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

ARCHS = ("gpt", "transformer", "lstm", "gru", "mingru", "minlstm", "rnn")
TEMPLATE = TaskTemplate(
    archs=ARCHS,
    data={"train": "train.jsonl", "valid": 0.05, "test": 0.05},
    files="JSONL or tables with instruction (input) output, prompt completion, or JSONL with messages",
    use=("weft chat runs/run", "talk to the model"),
    fine_tuned=ARCHS,
    hidden=("bidirectional",),
)
