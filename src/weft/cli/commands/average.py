"""`weft average`: the mean of the weights of several runs, as a new run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import FILES, Data, Device, ModelCommand
from weft.cli.output import status, warn, write, write_json

if TYPE_CHECKING:
    from weft.runs import average as averaging


def _table(result: averaging.Average) -> str:
    """The score of each run, and of the average."""
    from weft.text.table_layout import columns

    if result.metric is None:
        return ""
    rows = [["run", f"valid {result.metric.label}"]]
    for path, score in zip(result.runs, result.scores, strict=True):
        rows.append([f"{path}{'' if path in result.used else ' (not used)'}", result.metric.format(score)])
    rows.append([f"average of {len(result.used)}", result.metric.format(result.score)])
    return columns(rows)


@dataclass(kw_only=True)
class Average(ModelCommand):
    """Average the weights of several runs into a new run.

    The runs must have started from the same weights: fine-tuned from one run, or trained with one seed. The average is as fast
    as a single model. Each run and the average are evaluated on the validation data of the first run.
    """

    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two or more run directories.")]
    greedy: Annotated[
        bool,
        typer.Option("--greedy", help="Add runs to the average, the best first, only if it does not become worse."),
    ] = False
    data: Data = None
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.")
    ]
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.runs.average import average

        with Display(quiet=self.quiet) as display:

            def progress(done: int, total: int) -> None:
                display.show("evaluating", done / total, f"{done:,} of {total:,} models")

            display.show("reading", 0.0)
            result = average(
                self.runs, self.output_dir, greedy=self.greedy, data=self.data, device=self.device, progress=progress
            )
        if not result.share_initialization:
            problem = "the runs did not start from the same weights: their average is usually worse than each of them"
            warn(f"{problem}; use --ensemble or weft distill instead")
        if self.json:
            write_json({"output_dir": str(self.output_dir), **result.to_json()})
            return 0
        write(_table(result))
        verdict = "better than every run" if result.is_better else "not better than the best run"
        evaluated = "" if result.metric is None else f" (the average is {verdict})"
        name = shlex.quote(str(self.output_dir))
        status(f"Run saved to {self.output_dir}{evaluated}\nNext: weft evaluate {name}", quiet=self.quiet)
        return 0
