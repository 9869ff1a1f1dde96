"""The run file of policy gradients that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

ARCHS = ("gpt", "transformer", "lstm", "gru", "mingru", "minlstm", "rnn")
TEMPLATE = TaskTemplate(
    archs=ARCHS,
    data={"train": "prompts.jsonl", "reward_from": "runs/reward"},
    files="JSONL or tables with the column prompt",
    use=('weft generate runs/run "A prompt"', "generate a response"),
    fine_tuned=ARCHS,
    hidden=("bidirectional",),
)
