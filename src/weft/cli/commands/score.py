"""`weft score`: how probable each line is, and each of its tokens."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.ensemble_options import EnsembleOptions
from weft.cli.inputs import InputFormat, Inputs, problems_in, report_problems, whole, written
from weft.cli.output import finite, write, write_exact, write_json
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.data.input_records import Entry
    from weft.runs.run import AnyRun
    from weft.tasks.spec import Decode, Scored

LINES = 512  # scored at a time, at most


def as_json(line: Scored, *, tokens: bool) -> dict[str, Any]:
    """A line for programs; a log-probability that is null is that of what can't be."""
    found = {"text": line.text, "log_prob": finite(line.log_prob), "perplexity": finite(line.perplexity)}
    if not tokens:
        return {**found, "tokens": len(line.tokens)}
    pairs = zip(line.tokens, line.token_log_probs, strict=True)
    return {**found, "tokens": [{"token": token, "surprisal": finite(-value)} for token, value in pairs]}


def as_text(line: Scored, *, tokens: bool) -> str:
    """A line for people: numbers first, for a text may hold anything."""
    from weft.text.reading import preview

    if not tokens:
        return f"{line.log_prob:.4f}\t{line.perplexity:.4f}\t{line.text}\n"
    pairs = zip(line.tokens, line.token_log_probs, strict=True)
    # 0 - x, not -x: a certain token's surprisal is 0, not -0
    return "".join(f"{preview(token, len(token))}\t{0 - value:.4f}\n" for token, value in pairs) + "\n"


def as_fault(line: str | None, error: str, *, tokens: bool) -> dict[str, Any]:
    """A line that has no score, for programs; None is a line that is no text."""
    return {"text": line, "log_prob": None, "perplexity": None, "tokens": [] if tokens else 0, "error": error}


def parse_pair(line: str) -> tuple[tuple[str, ...], str | None]:
    """A line that is a source and a target."""
    texts = tuple(line.split("\t"))
    return texts, None if len(texts) == 2 else f"has {len(texts) - 1} tabs; a pair is a source, one tab, and a target"


@dataclass(kw_only=True)
class Score(EnsembleOptions):
    """Print log-probability (in nats), perplexity and text of every line of standard input.

    A translating run reads pairs, the source and the target with a tab between them, and scores the target. Of a table
    (.csv, .tsv, .jsonl) the columns of the texts are read, and it is printed with log-probability and perplexity added. What
    can't be read gives an empty line, a message, and exit code 3 at the end; the others are not lost.
    """

    input: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    per_token: Annotated[
        bool, typer.Option("--max-tokens", help="Print every token and its surprisal, a blank line after each line.")
    ] = False

    def run(self) -> int:
        from weft.cli.display import Display

        run = self.load()
        decode = run.task.decode
        if decode is None:
            raise UsageError("score", f"{self.run_dir} is a run of task {run.config.task!r}, which gives texts no probability")
        if self.truncate and not decode.pairs:
            raise UsageError("--truncate", f"is for runs that read sources, and {self.run_dir} is a {run.task.noun}", "drop it")
        inputs = Inputs(run, None, self.input, InputFormat(parse_pair if decode.pairs else whole, LINES, targets=True))
        inputs.report_file(quiet=self.quiet)
        if not (self.json or self.per_token):
            inputs.refuse_unlike(self.input)
            write_exact(inputs.form.head(("log_prob", "perplexity")))
        done, bad = 0, 0
        with Display(quiet=self.quiet) as display:
            for entries in inputs.batches():
                problems, found = self._scored(run, decode, entries, display, done)
                display.clear()
                report_problems(entries, problems)
                self._print(inputs, entries, problems, found)
                done, bad = done + len(entries), bad + len(problems)
        return DataError.exit_code if bad else 0

    def _scored(
        self, run: AnyRun, decode: Decode[Any], entries: Sequence[Entry], display: Display, before: int
    ) -> tuple[dict[int, str], dict[int, Scored]]:
        """Why records have no score, and the scores of the others, both by their number in the batch from 0."""
        from weft.tasks.spec import Fault

        unit = "pairs" if decode.pairs else "tokens"

        def progress(what: str, done: int, total: int) -> None:
            display.show(f"scoring from line {before + 1:,} on", done / total, f"{done:,} of {total:,} {unit}")

        problems = problems_in(entries)
        texts = {at: entry.texts for at, entry in enumerate(entries) if at not in problems}
        given = [both if decode.pairs else both[0] for both in texts.values()]
        results = dict(zip(texts, run.try_score(given, truncate=self.truncate, progress=progress), strict=True))
        problems |= {at: one.reason for at, one in results.items() if isinstance(one, Fault)}
        return problems, {at: one for at, one in results.items() if not isinstance(one, Fault)}

    def _print(
        self, inputs: Inputs, entries: Sequence[Entry], problems: Mapping[int, str], found: Mapping[int, Scored]
    ) -> None:
        for number, entry in enumerate(entries):
            score = found.get(number)
            if self.json and score is None:
                write_json(as_fault(entry.text, problems[number], tokens=self.per_token), indent=None)
            elif self.json and score is not None:
                write_json(as_json(score, tokens=self.per_token), indent=None)
            elif self.per_token or inputs.form.is_plain:
                write("\n" if score is None else as_text(score, tokens=self.per_token))
            else:
                values = (None, None) if score is None else (finite(score.log_prob), finite(score.perplexity))
                added = dict(zip(("log_prob", "perplexity"), values, strict=True))
                write_exact(written(inputs, entry, added, problems.get(number)))
        sys.stdout.flush()
