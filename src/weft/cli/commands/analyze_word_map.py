"""`weft analyze word-map`: word vectors in two dimensions, as an interactive page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.commands.neighbors import Vectors
from weft.cli.options import FILES, QuietCommand
from weft.cli.output import check_files, status, write
from weft.errors import UsageError

NUM_NEIGHBORS = 8  # of a word that is clicked


def _methods() -> list[str]:
    return ["pca", "tsne", "umap"]


@dataclass(kw_only=True)
class AnalyzeWordMap(QuietCommand):
    """Draw word vectors in two dimensions.

    Writes one HTML file that needs no network: drag, zoom, search, and click a word for its neighbors; or a picture, .svg.
    Shows the most frequent words, or those of --words. pca needs nothing else; tsne needs scikit-learn, umap umap-learn.
    """

    vectors: Vectors
    words: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Words to show, separated by spaces.  [default: the most frequent]"),
    ] = None
    max_words: Annotated[int, typer.Option(metavar="N", min=2, help="Maximum number of words.")] = 1000
    method: Annotated[str, typer.Option(metavar="NAME", autocompletion=_methods, help="pca, tsne or umap.")] = "pca"
    output: Annotated[
        Path, typer.Option("--output", "-o", rich_help_panel=FILES, metavar="FILE", help="Output file, .html or .svg.")
    ]

    def run(self) -> int:
        import numpy as np

        from weft import files
        from weft.plots.word_map import word_map, word_map_svg
        from weft.runs.open_vectors import open_vectors
        from weft.vectors.layout import layout
        from weft.vectors.word_vectors import top, unit_rows

        if self.output.suffix not in (".html", ".svg"):
            raise UsageError("output", f"{self.output} must end in .html or .svg")
        check_files({"output": self.output})
        vectors = open_vectors(self.vectors)
        if self.words is None:
            # punctuation and digits are frequent, and say little
            rows = [row for row, word in enumerate(vectors.words) if any(map(str.isalpha, word))][: self.max_words]
        else:
            found = {word: vectors.find(word) for word in self.words.split()[: self.max_words]}
            if missing := [word for word, row in found.items() if row is None]:
                raise vectors.unknown(missing[0])
            rows = [row for row in found.values() if row is not None]
        if len(rows) < 2:
            raise UsageError("words", "a map needs at least two words")
        array, names = vectors.rows.take(np.array(rows)), [vectors.words[row] for row in rows]
        units = unit_rows(array)
        cosines = units @ units.T
        np.fill_diagonal(cosines, -np.inf)
        best = top(cosines, min(NUM_NEIGHBORS, len(rows) - 1))
        neighbors = [[(other, float(cosines[row, other])) for other in found.tolist()] for row, found in enumerate(best)]
        points, title = layout(array, self.method), f"{self.vectors} ({self.method})"
        is_picture = self.output.suffix == ".svg"
        page = word_map_svg(names, points, title=title) if is_picture else word_map(names, points, neighbors, title=title)
        files.write_text(self.output, page, user_path=True)
        write(f"{self.output}\n")
        status(f"{len(rows):,} words, {self.method}", quiet=self.quiet)
        return 0
