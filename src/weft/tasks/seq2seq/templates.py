"""The run file of encoder-decoders that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=(
        *("lstm-input-feeding", "transformer", "lstm", "gru", "mingru", "minlstm", "rnn"),
        *("bahdanau", "luong", "sutskever", "cho"),
    ),
    data={"train": "train.tsv", "valid": 0.05, "test": 0.05},
    files='.tsv, .csv, .xlsx, .jsonl, .parquet, or two parallel files: ["a.en", "a.de"]',
    use=('weft predict runs/run "A line"', "predict the target of a line, or of each line of standard input"),
    tokenizer_example=("[tokenizer.source]", 'type = "char"', "[tokenizer.target]", 'type = "whitespace"'),
)
