"""`weft geometry`: how alike the vectors of words are, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.drawn import check_kind, write_views
from weft.cli.options import FILES, Device, Shared
from weft.cli.output import note, write, write_json
from weft.errors import UsageError
from weft.text.columns import counted


@dataclass(kw_only=True)
class Geometry(Shared):
    """Show how alike the vectors of words are in each layer: of any two words, of one word in two contexts, of those of one
    sentence; and how much of a word in all its contexts one direction explains (MEV, maximum explainable variance). Adjusted
    is what is left without what any words have in common.

    Reads a text, or of translating runs pairs, or the run's own validation data. With --out it draws curves, and a map of some
    words in all their contexts.
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
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
    most: Annotated[int, typer.Option(metavar="N", help="How many words are read.")] = 20_000
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write all of it: x.html, x.svg, x.png or x.json."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.explain.geometry import geometry
        from weft.runs.load import load

        check_kind("--out", self.out)
        if self.most < 2:
            raise UsageError(f"--most: must be 2 or more, not {self.most}")
        run = load(self.folder, device=self.device)
        with Display(quiet=self.quiet) as display:

            def told(done: int, total: int) -> None:
                display.show("reading", done / max(1, total), f"{done:,} of {total:,} texts")

            display.show("tokenising", 0.0)
            words = (self.words or "").split()
            view = geometry(run, self.data, words=words, layer=self.layer, most=self.most, told=told)
        numbers = {"run": str(self.folder), **view.data}
        if view.data["left_out"]:
            are = "is" if view.data["left_out"] == 1 else "are"
            left = f"{counted(view.data['left_out'], 'text')} {are} blank or longer than the model reads, and left out"
            note(f"weft: {left}", quiet=self.quiet)
        if view.data["repeated"]:
            were = "was" if view.data["repeated"] == 1 else "were"
            again = f"{counted(view.data['repeated'], 'text')} {were} there before; each is read once"
            note(f"weft: {again}", quiet=self.quiet)
        if self.json:
            write_json(numbers)
        else:
            write("\n".join(view.lines) + "\n")
        if self.out is not None:
            write_views(self.out, [view], title=str(self.folder), numbers=numbers, quiet=self.quiet)
        return 0
