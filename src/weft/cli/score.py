"""`weft score`: how probable each line is, and each of its tokens."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.output import finite, write, write_json
from weft.cli.together import Together, no_text, tell, without
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.cli.lines import Line
    from weft.run import LineScore

LINES = 512  # scored at a time, at most


def as_json(line: LineScore, *, tokens: bool) -> dict[str, Any]:
    """A line for programs; a log-probability that is null is that of what can't be."""
    found = {"text": line.text, "log_prob": finite(line.log_prob), "perplexity": finite(line.perplexity)}
    if not tokens:
        return {**found, "tokens": len(line.tokens)}
    pairs = zip(line.tokens, line.log_probs, strict=True)
    return {**found, "tokens": [{"token": token, "surprisal": finite(-value)} for token, value in pairs]}


def as_text(line: LineScore, *, tokens: bool) -> str:
    """A line for people: numbers first, for a text may hold anything."""
    from weft.text.gate import shown

    if not tokens:
        return f"{line.log_prob:.4f}\t{line.perplexity:.4f}\t{line.text}\n"
    pairs = zip(line.tokens, line.log_probs, strict=True)
    # 0 - x, not -x: a certain token's surprisal is 0, not -0
    return "".join(f"{shown(token, len(token))}\t{0 - value:.4f}\n" for token, value in pairs) + "\n"


def as_fault(line: str | None, error: str, *, tokens: bool) -> dict[str, Any]:
    """A line that has no score, for programs; None is a line that is no text."""
    return {"text": line, "log_prob": None, "perplexity": None, "tokens": [] if tokens else 0, "error": error}


def as_pair(line: str) -> tuple[str, str]:
    source, _, target = line.partition("\t")
    return source, target


def no_pairs(lines: Sequence[str]) -> dict[int, str]:
    """Which lines are no source and target, by their number from 0, and why."""
    tabs = {number: line.count("\t") for number, line in enumerate(lines)}
    return {at: f"has {count} tabs; a pair is a source, one tab, and a target" for at, count in tabs.items() if count != 1}


@dataclass(kw_only=True)
class Score(Together):
    """Print log-probability (in nats), perplexity and text of every line of standard input.

    A translating run reads pairs, the source and the target with a tab between them, and scores the target. A line that
    can't be read gives an empty line, a message, and exit code 3 at the end; the others are not lost.
    """

    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Print every token and its surprisal, a blank line after each line.")
    ] = False

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.lines import line_batches

        run: Any = self.load()
        if run.settings.task not in ("lm", "translate"):
            raise UsageError(f"score: {self.folder} is a run of task {run.settings.task!r}, which gives texts no probability")
        if self.truncate and run.settings.task != "translate":
            raise UsageError(f"--truncate: is for runs that read sources, and {self.folder} is a language model; drop it")
        done, bad = 0, 0
        with Display(quiet=self.quiet) as display:
            for batch in line_batches(self.data, run.settings.data.encoding, LINES):
                faults = self._faults(run, batch, done)
                found = self._scored(run, [str(line) for at, line in enumerate(batch) if at not in faults], display, done)
                display.clear()
                self._print(batch, faults, found)
                done, bad = done + len(batch), bad + len(faults)
        return DataError.exit_code if bad else 0

    def _faults(self, run: Any, lines: Sequence[Line], before: int) -> dict[int, str]:
        """Say which lines have no score, by their number from 0, and why."""
        broken = no_text(lines)
        read = without(lines, broken)
        if run.settings.task != "translate":
            return tell(broken, run.faults(read), before)
        long = run.faults_of_pairs([as_pair(line) for line in read], truncate=self.truncate)
        return tell(broken, {**long, **no_pairs(read)}, before)

    def _scored(self, run: Any, lines: Sequence[str], display: Display, before: int) -> list[LineScore]:
        translates = run.settings.task == "translate"
        unit = "pairs" if translates else "tokens"

        def watch(done: int, total: int) -> None:
            display.show(f"scoring from line {before + 1:,} on", done / total, f"{done:,} of {total:,} {unit}")

        if not translates:
            found: list[LineScore] = run.score(lines, watch=watch)
            return found
        found = run.score([as_pair(line) for line in lines], truncate=self.truncate, watch=watch)
        return found

    def _print(self, lines: Sequence[Line], faults: Mapping[int, str], found: Sequence[LineScore]) -> None:
        scores = iter(found)
        for number, line in enumerate(lines):
            if number not in faults:
                score = next(scores)
                text, value = as_text(score, tokens=self.tokens), as_json(score, tokens=self.tokens)
            else:
                read = None if isinstance(line, DataError) else line
                text, value = "\n", as_fault(read, faults[number], tokens=self.tokens)
            if self.json:
                write_json(value, indent=None)
            else:
                write(text)
        sys.stdout.flush()
