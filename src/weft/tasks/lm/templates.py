"""The run file of language models that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("gpt", "transformer", "lstm", "gru", "mingru", "minlstm", "rnn", "conv", "ngram"),
    data={"train": "train.txt", "valid": 0.05, "test": 0.05},
    files="text files, directories or patterns",
    use=('weft generate runs/run "A prompt"', "generate text"),
    hidden=("bidirectional",),
)
