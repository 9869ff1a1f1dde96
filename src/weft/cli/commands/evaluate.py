"""`weft evaluate`: exact scores of a trained run over whole texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.ensemble_options import SearchOptions
from weft.cli.options import Context
from weft.cli.output import finite, format_number, note, score_name, write, write_json
from weft.text.table_layout import columns

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
        bounds = ["" if bound is None else format_number(bound) for bound in (score.low, score.high)]
        rows.append([score_name(score.name), format_number(score.value), *bounds])
    return columns(rows)


def _tokenizers() -> list[str]:
    from weft.metrics.bleu_tokenizers import TOKENIZERS

    return list(TOKENIZERS)


@dataclass(kw_only=True)
class Evaluate(SearchOptions):
    """Score a run on its test data (or validation data), or on other files, with 95 % intervals.

    A language model by the exact probability of the text. A translating run by what it writes, searched for as the options
    say, and by the exact probability of the targets.
    """

    data: Annotated[
        list[Path] | None,
        # readable: the gate says what is wrong with data, and that is no fault of the command line
        typer.Option(metavar="FILE", readable=False, help="Score these files instead; may be given several times."),
    ] = None
    context: Context = None
    tokenize: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=_tokenizers,
            help="Of runs that write outputs: how BLEU splits them: 13a, zh, ja-mecab, ko-mecab, char, intl, none, flores200."
            "  [default: what suits the references]",
        ),
    ] = None
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse labels that training never saw; they count as wrong otherwise.")
    ] = False

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.task_options import Flag, options_of

        run = self.load()
        flags = {
            "beam": Flag(self.beam_size),
            "alpha": Flag(self.length_penalty),
            "context": Flag(self.context),
            "tokenize": Flag(self.tokenize),
            "truncate": Flag(self.truncate, False),
            "strict": Flag(self.strict, False),
        }
        options = options_of(run.task.evaluate_options, run.config.task, flags)
        with Display(quiet=self.quiet) as display:

            def progress(what: str, done: int, total: int) -> None:
                counted = f"{done:,} of {total:,} {run.task.counts}" if what == "evaluating" else ""
                display.show(what, done / max(1, total), counted)

            display.show("reading", 0.0)  # of which nothing else is heard where it is part of evaluating
            found = run.evaluate(self.data, options, progress=progress)
        own = run.config.datasets
        read = next((own[name] for name in ("test", "valid") if name in own), None)
        files = [str(path) for path in self.data or (() if read is None else read.paths)]
        if found.unseen:
            note(self._warning(run.task.says, found.unseen), quiet=self.quiet)
        for one in found.notes:
            note(f"weft: {one}", quiet=self.quiet)
        if self.json:
            never = {} if found.unseen is None else {"unseen": found.unseen}
            write_json({"scores": [as_json(score) for score in found.scores], **never, "run": str(self.run_dir), "data": files})
        else:
            signatures = dict.fromkeys(score.signature for score in found.scores)
            write(as_table(found.scores) + "".join(f"{signature}\n" for signature in signatures) + found.report)
        return 0

    def _warning(self, what: str, unseen: Counter[str]) -> str:
        from weft.data.summary import listed

        return f"weft: {what} that training never saw count as wrong, {unseen.total():,} in all: {listed(unseen)}"
