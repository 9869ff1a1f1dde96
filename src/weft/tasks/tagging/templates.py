"""Template of the run file for `weft init tagging`."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("lstm", "gru", "mingru", "minlstm", "rnn", "conv", "transformer", "bert"),
    data={"train": "train.conllu", "valid": 0.1, "test": 0.1},
    files="CoNLL-U, or columns with a blank line after each sentence",
    use=('weft predict runs/run "Some words"', "predict the tags of a sentence, or of each line of standard input"),
    fine_tuned=("bert",),
    hidden=("label_smoothing",),
)
