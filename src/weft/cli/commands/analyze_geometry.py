"""`weft analyze geometry`: the geometry of word representations, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from weft.cli.explanation_output import check_format, write_explanations
from weft.cli.options import Data, Device, ModelCommand, RunDirectory, ViewFile
from weft.cli.output import note, pluralize, write, write_json
from weft.errors import UsageError


@dataclass(kw_only=True)
class AnalyzeGeometry(ModelCommand):
    """Measure how similar word vectors are in each layer.

    Prints, for each layer, the cosine similarity of any two words, of one word in two contexts and of the words of one
    sentence, and the maximum explainable variance (MEV) of a word in all its contexts. Adjusted values subtract what any two
    words share. Reads texts (seq2seq: pairs), by default the run's validation data. --output also plots some words in all
    their contexts.
    """

    run_dir: RunDirectory
    words: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Words to plot, separated by spaces.  [default: some frequent words]"),
    ] = None
    layer: Annotated[int | None, typer.Option(metavar="N", help="Layer to plot; 0 is the embedding.  [default: the last]")] = (
        None
    )
    max_words: Annotated[int, typer.Option(metavar="N", help="Maximum number of words to read.")] = 20_000
    data: Data = None
    output: ViewFile = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.explain.geometry import geometry
        from weft.runs.load import load

        check_format("output", self.output)
        if self.max_words < 2:
            raise UsageError("max_words", f"must be at least 2, got {self.max_words}")
        run = load(self.run_dir, device=self.device)
        with Display(quiet=self.quiet) as display:

            def progress(done: int, total: int) -> None:
                display.show("reading", done / max(1, total), f"{done:,} of {total:,} texts")

            display.show("tokenizing", 0.0)
            words = (self.words or "").split()
            view = geometry(run, self.data, words=words, layer=self.layer, max_words=self.max_words, progress=progress)
        numbers = {"run": str(self.run_dir), **view.data}
        if count := view.data["left_out"]:
            note(f"skipped {pluralize(count, 'text')}: blank, or too long for the model", quiet=self.quiet)
        if count := view.data["repeated"]:
            note(f"skipped {pluralize(count, 'repeated text')}", quiet=self.quiet)
        if self.json:
            write_json(numbers)
        else:
            write("\n".join(view.lines) + "\n")
        if self.output is not None:
            write_explanations(self.output, [view], title=str(self.run_dir), numbers=numbers, quiet=self.quiet)
        return 0
