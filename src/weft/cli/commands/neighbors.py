"""`weft neighbors`: the words nearest to a word or an analogy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import ModelCommand
from weft.cli.output import write_json, write_table
from weft.errors import UsageError

Vectors = Annotated[
    Path, typer.Argument(metavar="VECTORS", help="Run directory, or file: .txt, .vec, .bin, .safetensors or .npy.")
]


@dataclass(kw_only=True)
class Neighbors(ModelCommand):
    """Find the words nearest to a word, or to an analogy such as king - man + woman.

    Prints words with the cosine of their vectors. A sum or difference is that of vectors of length 1, and its own words are
    left out. Reads word vectors of a run or a file.
    """

    vectors: Vectors
    words: Annotated[
        list[str], typer.Argument(metavar="WORD...", help="A word, or words with + and - between them.", show_default=False)
    ]
    num_neighbors: Annotated[int, typer.Option("--num-neighbors", "-n", metavar="N", help="Number of words.")] = 10

    def run(self) -> int:
        from weft.runs.open_vectors import open_vectors
        from weft.text.table_layout import columns

        if self.num_neighbors < 1:
            raise UsageError("num_neighbors", f"must be at least 1, got {self.num_neighbors}")
        expression = " ".join(self.words)
        found = open_vectors(self.vectors).neighbors_of(expression, self.num_neighbors)
        if self.json:
            write_json({"query": expression, "neighbors": [neighbor._asdict() for neighbor in found]})
        else:
            write_table(columns([["word", "cosine"], *([word, f"{similarity:.3f}"] for word, similarity in found)]))
        return 0
