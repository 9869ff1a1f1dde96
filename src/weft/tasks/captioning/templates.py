"""The run file of captioning that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=(
        *("transformer", "show-attend-tell", "show-and-tell", "vit", "s2vt"),
        *("lstm", "gru", "mingru", "minlstm", "rnn", "lipnet"),
    ),
    data={"train": "train.tsv", "valid": 0.1, "test": 0.1},
    files=".tsv, .csv, .jsonl: paths and texts; .json of COCO",
    use=("weft predict runs/run photo.jpg", "describe an image"),
    hidden=("reverse_source", "embedding_norm", "copy_mechanism", "share_embeddings"),
)
