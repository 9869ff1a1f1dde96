"""`weft evaluate`: exact scores of a trained run over whole texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Context
from weft.cli.output import columns, finite, note, number, score_name, write, write_json
from weft.cli.together import Searching
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


def _tokenizers() -> list[str]:
    from weft.metrics.bleu_tokenizers import TOKENIZERS

    return list(TOKENIZERS)


@dataclass(kw_only=True)
class Evaluate(Searching):
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

        run = self.load()
        with Display(quiet=self.quiet) as display:
            scores, report, unseen = self._measured(run, display)
        own = run.settings.sources()
        read = next((own[name] for name in ("test", "valid") if name in own), None)
        files = [str(path) for path in self.data or (() if read is None else read.paths)]
        if unseen:
            note(self._warning(run.settings.task, unseen), quiet=self.quiet)
        if self.json:
            never = {} if unseen is None else {"unseen": unseen}
            write_json({"scores": [as_json(score) for score in scores], **never, "run": str(self.folder), "data": files})
        else:
            signatures = dict.fromkeys(score.signature for score in scores)
            write(as_table(scores) + "".join(f"{signature}\n" for signature in signatures) + report)
        return 0

    def _warning(self, task: str, unseen: Counter[str]) -> str:
        from weft.data.labelled import listed

        what = "tags" if task == "tag" else "labels"
        return f"weft: {what} that training never saw count as wrong, {unseen.total():,} in all: {listed(unseen)}"

    def _measured(self, run: Any, display: Display) -> tuple[list[Score], str, Counter[str] | None]:
        """Scores, what else there is to show of them, and, where there are labels, those that training never saw."""
        task = run.settings.task
        if task in ("classify", "tag"):
            return self._labels(run, display)
        if self.strict:
            raise UsageError(f"--strict: is about labels, and {self.folder} is a run of task {task!r}; drop it")
        if task == "span":
            return self._answers(run, display), "", None
        return (self._translator(run, display) if task == "translate" else self._language(run, display)), "", None

    def _refuse_search(self, task: str) -> None:
        for option in ("beam", "alpha", "context", "tokenize", "truncate"):
            if getattr(self, option) not in (None, False):
                raise UsageError(f"--{option}: is not for runs of task {task!r}, as {self.folder} is; drop it")

    def _answers(self, run: Any, display: Display) -> list[Score]:
        self._refuse_search(run.settings.task)

        def watch(done: int, total: int) -> None:
            display.show("evaluating", done / max(1, total), f"{done:,} of {total:,} questions")

        display.show("reading", 0.0)
        found: list[Score] = run.evaluate(self.data, watch=watch)
        return found

    def _labels(self, run: Any, display: Display) -> tuple[list[Score], str, Counter[str]]:
        from weft.cli.label_output import label_report, tag_report

        task = run.settings.task
        self._refuse_search(task)

        def watch(done: int, total: int) -> None:
            display.show("evaluating", done / max(1, total), f"{done:,} of {total:,} texts")

        scores, items = run.measure(self.data, strict=self.strict, watch=watch)
        several = task == "classify" and run.settings.data.multi
        report = tag_report(run.labels, items) if task == "tag" else label_report(run.labels, items, several=several)
        return scores, report, run.unseen(self.data)

    def _language(self, run: Any, display: Display) -> list[Score]:
        for option in ("beam", "alpha", "tokenize", "truncate"):
            if getattr(self, option) not in (None, False):
                raise UsageError(f"--{option}: is for runs that write outputs, and {self.folder} is a language model; drop it")

        def watch(done: int, total: int) -> None:
            display.show("evaluating", done / max(1, total), f"{done:,} of {total:,} tokens")

        def reading(done: int, total: int) -> None:
            display.show("tokenising", done / max(1, total))

        if run.settings.task == "masked-lm":
            if self.context is not None:
                raise UsageError(f"--context: is for language models, and {self.folder} fills gaps; drop it")
            hidden: list[Score] = run.evaluate(self.data, watch=watch, reading=reading)
            return hidden
        found: list[Score] = run.evaluate(self.data, context=self.context, watch=watch, reading=reading)
        return found

    def _translator(self, run: Any, display: Display) -> list[Score]:
        from weft.decode.predict_options import PredictOptions

        if self.context is not None:
            raise UsageError(f"--context: is for language models, and {self.folder} is a run of task 'translate'; drop it")

        def watch(done: int, total: int) -> None:
            display.show("evaluating", done / max(1, total), f"{done:,} of {total:,} lines")

        options = PredictOptions(beam=self.beam, alpha=self.alpha, truncate=self.truncate)
        display.show("reading", 0.0)  # and tokenising, of which nothing is heard until the first lines are searched

        found: list[Score] = run.evaluate(self.data, options, tokenize=self.tokenize, watch=watch)
        return found
