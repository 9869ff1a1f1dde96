"""`weft fill`: what stands in the gaps of a text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.entries import Inputs, Reads, faults_in, note_file, tell_faults
from weft.cli.options import Device, Shared
from weft.cli.output import write, write_json
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.data.records import Entry
    from weft.runs.run import Run
    from weft.tasks.masked_lm.predict import Filled, Filling

LINES = 256  # filled at a time, at most


def as_json(text: str | None, gaps: Sequence[Sequence[Filling]]) -> dict[str, Any]:
    """A text and its gaps, each with the best first; None is a line that is no text."""
    found = [[{"token": one.token, "probability": one.probability} for one in gap] for gap in gaps]
    return {"text": text, "gaps": found}


def _shown(token: str) -> str:
    """A token on one line: white space that can't be told from none as an escape."""
    return token.encode("unicode_escape").decode() if token != token.strip("\n\r\t\0") or not token.strip() else token


@dataclass(kw_only=True)
class Fill(Shared):
    """Print the most probable tokens for each [MASK] of a text, best first: probability and token.

    Without a text, every line of standard input; then the numbers of the line and of its gap stand first. A line that can't
    be filled gives an empty line, a message, and exit code 3 at the end; the others are not lost.
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help='With gaps: "the [MASK] sat"; <mask> is understood, too.')
    ] = None
    n: Annotated[int, typer.Option("--n", metavar="N", help="Tokens for each gap.")] = 5
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.runs.load import load, ready
        from weft.tasks.masked_lm.task import MASKED_LM

        if self.text is not None and self.data:
            raise UsageError("--data: does not go with a text; give one of them")
        run = ready(load(self.folder, MASKED_LM, device=self.device))
        note_file(self.text, f"use --data {self.text} to read the file", quiet=self.quiet)
        inputs = Inputs(run, self.text, self.data, Reads(most=LINES))
        inputs.tell(quiet=self.quiet)
        done, bad = 0, 0
        for entries in inputs.batches():
            bad += self._fill(run, entries, done)
            done += len(entries)
            sys.stdout.flush()
        return DataError.exit_code if bad else 0

    def _fill(self, run: Run[str, Filled], entries: Sequence[Entry], before: int) -> int:
        """Print what fills the gaps of the texts; how many can't be filled."""
        broken = faults_in(entries)
        unfit = run.reader.faults([entry.texts[0] for at, entry in enumerate(entries) if at not in broken])
        whole = [at for at in range(len(entries)) if at not in broken]
        faults = {whole[at]: fault for at, fault in unfit.items()} | broken
        tell_faults(entries, faults)
        found = iter(run.predict([entry.texts[0] for at, entry in enumerate(entries) if at not in faults], n=self.n))
        for at, entry in enumerate(entries):
            gaps = [] if at in faults else next(found)
            if self.json:
                error = {"error": faults[at]} if at in faults else {}
                write_json({**as_json(entry.text, gaps), **error}, indent=None)
            elif self.text is not None:
                blocks = ["".join(f"{one.probability:.4f}\t{_shown(one.token)}\n" for one in gap) for gap in gaps]
                write("\n".join(blocks))
            else:
                rows = [(number, one) for number, gap in enumerate(gaps, 1) for one in gap]
                texts = [f"{before + at + 1}\t{number}\t{one.probability:.4f}\t{_shown(one.token)}\n" for number, one in rows]
                write("".join(texts) or "\n")
        return len(faults)
