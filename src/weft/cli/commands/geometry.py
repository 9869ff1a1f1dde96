"""`weft geometry`: how alike the vectors of words are, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.explanation_output import check_format, write_explanations
from weft.cli.options import FILES, Device, ModelCommand
from weft.cli.output import note, write, write_json
from weft.errors import UsageError
from weft.text.table_layout import count_of


@dataclass(kw_only=True)
class Geometry(ModelCommand):
    """Show how alike the vectors of words are in each layer: of any two words, of one word in two contexts, of those of one
    sentence; and how much of a word in all its contexts one direction explains (MEV, maximum explainable variance). Adjusted
    is what is left without what any words have in common.

    Reads a text, or of translating runs pairs, or the run's own validation data. With --output-dir it draws curves, and a map of some
    words in all their contexts.
    """

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read these lines instead; may be given several times."),
    ] = None
    words: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Words to draw, with spaces between.  [default: some that are frequent]")
    ] = None
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="Draw them in this layer; 0 is the input.  [default: the top]")
    ] = None
    max_words: Annotated[int, typer.Option(metavar="N", help="How many words are read.")] = 20_000
    output: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write all of it: x.html, x.svg, x.png or x.json."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.explain.geometry import geometry
        from weft.runs.load import load

        check_format("--output-dir", self.output)
        if self.max_words < 2:
            raise UsageError("--max-words", f"must be 2 or more, not {self.max_words}")
        run = load(self.run_dir, device=self.device)
        with Display(quiet=self.quiet) as display:

            def told(done: int, total: int) -> None:
                display.show("reading", done / max(1, total), f"{done:,} of {total:,} texts")

            display.show("tokenising", 0.0)
            words = (self.words or "").split()
            view = geometry(run, self.data, words=words, layer=self.layer, max_words=self.max_words, progress=told)
        numbers = {"run": str(self.run_dir), **view.data}
        if view.data["left_out"]:
            are = "is" if view.data["left_out"] == 1 else "are"
            left = f"{count_of(view.data['left_out'], 'text')} {are} blank or longer than the model reads, and left out"
            note(f"weft: {left}", quiet=self.quiet)
        if view.data["repeated"]:
            were = "was" if view.data["repeated"] == 1 else "were"
            again = f"{count_of(view.data['repeated'], 'text')} {were} there before; each is read once"
            note(f"weft: {again}", quiet=self.quiet)
        if self.json:
            write_json(numbers)
        else:
            write("\n".join(view.lines) + "\n")
        if self.output is not None:
            write_explanations(self.output, [view], title=str(self.run_dir), numbers=numbers, quiet=self.quiet)
        return 0
