"""`weft predict`: one line in, one line out; a table in, a table out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import DECODING, FILES, TopK, TopP
from weft.cli.together import Searching
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.cli.task_options import Flag


@dataclass(kw_only=True)
class Predict(Searching):
    """Translate, pronounce, classify, tag, answer: print what every line of standard input becomes.

    One line in, one line out; an empty line stays empty. Files are read as those of training: of tables (.csv, .tsv, .jsonl)
    the text columns, and the same table is printed with the prediction added; CoNLL with the tags. What can't be read gives
    an empty line, a message, and exit code 3 at the end; the others are not lost.
    """

    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A line to predict from, instead of standard input.")] = (
        None
    )
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    n_best: Annotated[
        int,
        typer.Option(
            rich_help_panel=DECODING, metavar="N", help="The N best of each line: line number, score and text, by tabs."
        ),
    ] = 1
    length: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=DECODING, metavar="N", help="Tokens to write at most.  [default: twice the source's and 32]"
        ),
    ] = None
    least: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Tokens before the end may come.")] = 0
    prefix: Annotated[
        str, typer.Option(rich_help_panel=DECODING, metavar="TEXT", help="What every output must start with.")
    ] = ""
    ban: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=DECODING, metavar="TOKEN", help="Never write this token; may be given several times."),
    ] = None
    samples: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Draw N outputs of each line instead of searching.")
    ] = 1
    temperature: Annotated[
        float | None, typer.Option(rich_help_panel=DECODING, metavar="X", help="Of sampling: below 1 safer, above 1 wilder.")
    ] = None
    top_k: TopK = None
    top_p: TopP = None
    seed: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="The same seed, the same samples.")] = 0
    alignments: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="DIR",
            help="Write for each line where its output looked: JSON, and a heat map as SVG.",
        ),
    ] = None
    layer: Annotated[
        int | None, typer.Option(rich_help_panel=FILES, metavar="N", help="Of --alignments: one layer, not the mean.")
    ] = None
    head: Annotated[
        int | None, typer.Option(rich_help_panel=FILES, metavar="N", help="Of --alignments: one head, not the mean.")
    ] = None

    def run(self) -> int:
        from weft.cli.predict_lines import predict_lines
        from weft.cli.task_options import options_of
        from weft.files import in_the_way

        if self.alignments is not None and (file := in_the_way(self.alignments)) is not None:
            raise UsageError(f"--alignments: {file} is a file; name a folder")
        run = self.load()
        if run.task.use != "predict":
            raise run.refuse(f"use weft {run.task.use}")
        options = options_of(run.task.predict_options, run.settings.task, self._flags())
        return predict_lines(run, options, self, beside=self.alignments)

    def _flags(self) -> dict[str, Flag]:
        from weft.cli.task_options import Flag

        return {
            "beam": Flag(self.beam),
            "alpha": Flag(self.alpha),
            "n_best": Flag(self.n_best, 1),
            "length": Flag(self.length),
            "least": Flag(self.least, 0),
            "prefix": Flag(self.prefix, ""),
            "ban": Flag(self.ban or [], []),
            "samples": Flag(self.samples, 1),
            "temperature": Flag(self.temperature),
            "top_k": Flag(self.top_k),
            "top_p": Flag(self.top_p),
            "seed": Flag(self.seed, 0),
            "truncate": Flag(self.truncate, False),
            "alignments": Flag(self.alignments is not None, False),
            "layer": Flag(self.layer),
            "head": Flag(self.head),
        }
