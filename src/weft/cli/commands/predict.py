"""`weft predict`: one line in, one line out; a table in, a table out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.ensemble_options import SearchOptions
from weft.cli.options import DECODING, FILES, TopK, TopP
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.cli.task_options import Flag


@dataclass(kw_only=True)
class Predict(SearchOptions):
    """Translate, pronounce, classify, tag, answer: print what every line of standard input becomes.

    One line in, one line out; an empty line stays empty. Files are read as those of training: of tables (.csv, .tsv, .jsonl)
    the text columns, and the same table is printed with the prediction added; CoNLL with the tags. What can't be read gives
    an empty line, a message, and exit code 3 at the end; the others are not lost.
    """

    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A line to predict from, instead of standard input.")] = (
        None
    )
    input: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    n_best: Annotated[
        int,
        typer.Option(
            rich_help_panel=DECODING, metavar="N", help="The N best of each line: line number, score and text, by tabs."
        ),
    ] = 1
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=DECODING, metavar="N", help="Tokens to write at most.  [default: twice the source's and 32]"
        ),
    ] = None
    min_new_tokens: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Tokens before the end may come.")
    ] = 0
    target_prefix: Annotated[
        str, typer.Option(rich_help_panel=DECODING, metavar="TEXT", help="What every output must start with.")
    ] = ""
    ban_token: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=DECODING, metavar="TOKEN", help="Never write this token; may be given several times."),
    ] = None
    num_samples: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Draw N outputs of each line instead of searching.")
    ] = 1
    temperature: Annotated[
        float | None, typer.Option(rich_help_panel=DECODING, metavar="X", help="Of sampling: below 1 safer, above 1 wilder.")
    ] = None
    top_k: TopK = None
    top_p: TopP = None
    seed: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="The same seed, the same samples.")] = 0
    save_alignments: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="DIR",
            help="Write for each line where its output looked: JSON, and a heat map as SVG.",
        ),
    ] = None
    layer: Annotated[
        int | None, typer.Option(rich_help_panel=FILES, metavar="N", help="Of --save-alignments: one layer, not the mean.")
    ] = None
    head: Annotated[
        int | None, typer.Option(rich_help_panel=FILES, metavar="N", help="Of --save-alignments: one head, not the mean.")
    ] = None

    def run(self) -> int:
        from weft.cli.predict_lines import predict_lines
        from weft.cli.task_options import options_of
        from weft.files import blocking_file

        if self.save_alignments is not None and (file := blocking_file(self.save_alignments)) is not None:
            raise UsageError("--save-alignments", f"{file} is a file", "name a folder")
        run = self.load()
        if run.task.use != "predict":
            raise run.refuse(f"use weft {run.task.use}")
        options = options_of(run.task.predict_options, run.config.task, self._flags())
        return predict_lines(run, options, self, beside=self.save_alignments)

    def _flags(self) -> dict[str, Flag]:
        from weft.cli.task_options import Flag

        return {
            "beam": Flag(self.beam_size),
            "alpha": Flag(self.length_penalty),
            "n_best": Flag(self.n_best, 1),
            "length": Flag(self.max_new_tokens),
            "least": Flag(self.min_new_tokens, 0),
            "target_prefix": Flag(self.target_prefix, ""),
            "ban": Flag(self.ban_token or [], []),
            "samples": Flag(self.num_samples, 1),
            "temperature": Flag(self.temperature),
            "top_k": Flag(self.top_k),
            "top_p": Flag(self.top_p),
            "seed": Flag(self.seed, 0),
            "truncate": Flag(self.truncate, False),
            "return_alignments": Flag(self.save_alignments is not None, False),
            "layer": Flag(self.layer),
            "head": Flag(self.head),
        }
