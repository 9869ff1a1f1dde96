"""`weft evaluate`: exact scores of a trained run over whole texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.output import columns, finite, number, score_name, write, write_json
from weft.cli.together import Together
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
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
class Evaluate(Together):
    """Score a run on its test data (or validation data), or on other files, with 95 % intervals.

    A language model by the exact probability of the text. A translating run by what it writes, searched for as the options
    say, and by the exact probability of the targets.
    """

    data: Annotated[
        list[Path] | None,
        # readable: the gate says what is wrong with data, and that is no fault of the command line
        typer.Option(metavar="FILE", readable=False, help="Score these files instead; may be given several times."),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Of language models: what a token is predicted from: reset (its line), carry (all before it), "
            "stride or stride:N (a window that moves on by N tokens).  [default: what suits the run]",
        ),
    ] = None

    def run(self) -> int:
        from weft.cli.display import Display

        run = self.load()
        with Display(quiet=self.quiet) as display:
            scores = self._translator(run, display) if run.settings.task == "translate" else self._language(run, display)
        own = run.settings.sources()
        files = [str(path) for path in self.data or own.get("test", own.get("valid", own["train"])).paths]
        if self.json:
            write_json({"scores": [as_json(score) for score in scores], "run": str(self.folder), "data": files})
        else:
            signatures = dict.fromkeys(score.signature for score in scores)
            write(as_table(scores) + "".join(f"{signature}\n" for signature in signatures))
        return 0

    def _language(self, run: Any, display: Display) -> list[Score]:
        for option in ("beam", "alpha"):
            if getattr(self, option) is not None:
                raise UsageError(f"--{option}: is for runs that write outputs, and {self.folder} is a language model; drop it")

        def watch(done: int, total: int) -> None:
            display.show("evaluating", done / max(1, total), f"{done:,} of {total:,} tokens")

        found: list[Score] = run.evaluate(self.data, context=self.context, watch=watch)
        return found

    def _translator(self, run: Any, display: Display) -> list[Score]:
        from weft.decode.predict_options import PredictOptions

        if self.context is not None:
            raise UsageError(f"--context: is for language models, and {self.folder} is a run of task 'translate'; drop it")

        def watch(done: int, total: int) -> None:
            display.show("evaluating", done / max(1, total), f"{done:,} of {total:,} lines")

        found: list[Score] = run.evaluate(self.data, PredictOptions(beam=self.beam, alpha=self.alpha), watch=watch)
        return found
