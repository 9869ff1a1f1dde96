"""`weft fill`: what stands in the gaps of a text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import Device, ModelCommand
from weft.errors import UsageError


@dataclass(kw_only=True)
class Fill(ModelCommand):
    """Print the most probable tokens for each [MASK] of a text, best first: probability and token.

    Without a text, every line of standard input; then the numbers of the line and of its gap stand first. A line that can't
    be filled gives an empty line, a message, and exit code 3 at the end; the others are not lost.
    """

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help='With gaps: "the [MASK] sat"; <mask> is understood, too.')
    ] = None
    n_best: Annotated[int, typer.Option("--n-best", metavar="N", help="Tokens for each gap.")] = 5
    input: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.predict_lines import predict_lines
        from weft.cli.task_options import Flag, options_of
        from weft.runs.load import load, prepared

        if self.text is not None and self.input:
            raise UsageError("--data", "does not go with a text", "give one of them")
        run = load(self.run_dir, device=self.device)
        if run.task.use != "fill":
            raise run.refuse(f"use weft {run.task.use}")
        return predict_lines(
            prepared(run), options_of(run.task.predict_options, run.config.task, {"n_best": Flag(self.n_best, 5)}), self
        )
