"""The run file of word vectors that `weft init` prints."""

from __future__ import annotations

from weft.tasks.templates import TaskTemplate

TEMPLATE = TaskTemplate(
    archs=("skip-gram", "cbow", "fasttext", "ppmi", "glove"),
    data={"train": "train.txt", "test": "similarity.tsv"},
    files="text files, directories or patterns",
    use=('weft neighbors runs/run "king - man + woman"', "nearest words"),
)
