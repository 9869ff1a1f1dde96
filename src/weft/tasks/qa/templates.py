"""The run file of question answering that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("transformer", "bert", "lstm", "gru", "mingru", "minlstm", "rnn"),
    data={"train": "train.jsonl", "valid": 0.1, "test": 0.1},
    files=".jsonl, .tsv, .csv, .xlsx, .parquet, or SQuAD's .json",
    use=("weft predict runs/run < questions.tsv", "predict answers; a line is a question, a tab and a passage"),
    fine_tuned=("bert",),
    hidden=("label_smoothing",),
)
