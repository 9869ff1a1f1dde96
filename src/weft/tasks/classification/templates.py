"""Template of the run file for `weft init classification`."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("lstm", "gru", "mingru", "minlstm", "rnn", "conv", "transformer", "bert", "logistic-regression", "naive-bayes"),
    data={"train": "train.csv", "valid": 0.1, "test": 0.1},
    files=".csv, .tsv, .xlsx, .jsonl, .parquet, lines that start with a label, or a directory with one file per label",
    use=('weft predict runs/run "A text"', "predict the label of a text, or of each line of standard input"),
    fine_tuned=("bert",),
)
