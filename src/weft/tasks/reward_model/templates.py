"""The run file of reward models that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("gru", "lstm", "mingru", "minlstm", "rnn", "conv", "transformer", "bert", "gpt", "linear"),
    data={"train": "train.jsonl", "valid": 0.1, "test": 0.1},
    files="tables or JSONL with the columns chosen and rejected",
    use=('weft predict runs/run "A text"', "the reward of a text, or of each line of standard input"),
    fine_tuned=("bert", "gpt"),
)
