"""`weft score`: how probable each line is, and each of its tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Device, Shared
from weft.cli.output import finite, write, write_json
from weft.errors import DataError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.run import LineScore

LINES = 512  # scored at a time; of a terminal one, for somebody waits for the answer


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


def pairs(lines: Sequence[str], first: int) -> list[tuple[str, str]]:
    """Each line as source and target; `first` is the number of the first one."""
    found = []
    for number, line in enumerate(lines, first):
        source, tab, target = line.partition("\t")
        if not tab or "\t" in target:
            raise DataError(f"line {number}: has {line.count(chr(9))} tabs; a pair is a source, one tab, and a target")
        found.append((source, target))
    return found


def _show(display: Display, what: str, done: int, total: int) -> None:
    display.show(what, done / total, f"{done:,} of {total:,} tokens")


@dataclass(kw_only=True)
class Score(Shared):
    """Print log-probability (in nats), perplexity and text of every line of standard input.

    A translating run reads pairs, the source and the target with a tab between them, and scores the target.
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Print every token and its surprisal, a blank line after each line.")
    ] = False
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.lines import batched, input_lines
        from weft.run import load

        run: Any = load(self.folder, device=self.device)
        lines = input_lines(self.data, run.settings.data.encoding)
        first, translates = 1, run.settings.task == "translate"
        with Display(quiet=self.quiet) as display:
            for batch in batched(lines, 1 if not self.data and sys.stdin.isatty() else LINES):
                watch = partial(_show, display, f"scoring from line {first:,} on")
                found = run.score(pairs(batch, first) if translates else batch, watch=watch)
                display.clear()
                self._print(found)
                first += len(batch)
        return 0

    def _print(self, found: Sequence[LineScore]) -> None:
        for line in found:
            if self.json:
                write_json(as_json(line, tokens=self.tokens), indent=None)
            else:
                write(as_text(line, tokens=self.tokens))
        sys.stdout.flush()
