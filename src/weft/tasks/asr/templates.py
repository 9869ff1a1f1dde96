"""The run file of speech recognition that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("lstm", "gru", "mingru", "minlstm", "rnn", "transformer", "conformer"),
    data={"train": "train.tsv", "valid": 0.1, "test": 0.1},
    files=".tsv, .csv, .jsonl: paths and transcripts; a directory of Kaldi",
    use=("weft predict runs/run recording.wav", "recognize a recording"),
    hidden=("reverse_source", "embedding_norm", "copy_mechanism", "share_embeddings"),
)
