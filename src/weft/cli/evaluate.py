"""`weft evaluate`: exact scores of a trained run over whole texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Device, Shared
from weft.cli.output import columns, finite, number, score_name, write, write_json

if TYPE_CHECKING:
    from weft.metrics.items import Score


def as_json(score: Score) -> dict[str, Any]:
    """A score for programs: JSON has no infinity, so an infinite value is null and says so."""
    found = {"name": score.name, "value": finite(score.value), "low": finite(score.low), "high": finite(score.high)}
    infinite = {"infinite": True} if math.isinf(score.value) else {}
    return {**found, **infinite, "signature": score.signature}


def as_table(scores: Sequence[Score]) -> str:
    """Scores for people, with their 95 % intervals."""
    rows = [["", "score", "low", "high"]]
    for score in scores:
        bounds = ["" if bound is None else number(bound) for bound in (score.low, score.high)]
        rows.append([score_name(score.name), number(score.value), *bounds])
    return columns(rows)


@dataclass(kw_only=True)
class Evaluate(Shared):
    """Score a run on its test data (or validation data), or on other files: exactly, with 95 % intervals."""

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    data: Annotated[
        list[Path] | None,
        # readable: the gate says what is wrong with data, and that is no fault of the command line
        typer.Option(metavar="FILE", readable=False, help="Text to score instead; may be given several times."),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="What a token is predicted from: reset (its line), carry (all before it), "
            "stride or stride:N (a window that moves on by N tokens).  [default: what suits the run]",
        ),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.run import load

        run = load(self.folder, device=self.device)
        with Display(quiet=self.quiet) as display:

            def watch(done: int, total: int) -> None:
                display.show("evaluating", done / max(1, total), f"{done:,} of {total:,} tokens")

            scores = run.evaluate(self.data, context=self.context, watch=watch)
        own = run.settings.sources()
        files = [str(path) for path in self.data or own.get("test", own.get("valid", own["train"])).paths]
        if self.json:
            write_json({"scores": [as_json(score) for score in scores], "run": str(self.folder), "data": files})
        else:
            write(as_table(scores) + f"{scores[0].signature}\n")
        return 0
