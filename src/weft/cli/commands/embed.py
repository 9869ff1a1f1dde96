"""`weft embed`: a vector for every line."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.entries import Inputs, Reads, faults_in, first_texts, note_file, tell_faults
from weft.cli.options import FILES, Device, Shared
from weft.cli.output import check_files, write
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from weft.data.records import Entry
    from weft.runs.run import AnyRun

LINES = 65536  # embedded at a time, at most: like lengths are found among them


def _pools() -> list[str]:
    return ["mean", "first"]


def json_line(line: str | None, vector: np.ndarray, fault: str | None) -> str:
    """A line and its vector, as short as its numbers can be said; no vector where there is none to say."""
    import json

    if fault is not None:
        return json.dumps({"text": line, "vector": None, "error": fault}, ensure_ascii=False) + "\n"
    # the shortest digits that give the same float32 again
    numbers = ",".join(str(value) for value in vector)
    return f'{{"text": {json.dumps(line, ensure_ascii=False)}, "vector": [{numbers}]}}\n'


@dataclass(kw_only=True)
class Embed(Shared):
    """Give every line of standard input a vector: the mean of an encoder's over the line, or that of its first token.

    Prints a line of JSON each, or writes one file: .npy (float32, a row for each line) or .jsonl. Of tables and CoNLL the
    texts are read, as in training. A line that can't be read has no vector (in .npy a row of NaN), a message, and exit code
    3 at the end.
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A line to embed, instead of standard input.")] = None
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    pool: Annotated[
        str, typer.Option(metavar="NAME", autocompletion=_pools, help="How a line becomes one vector: mean, or first.")
    ] = "mean"
    out: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the vectors here: x.npy or x.jsonl.")
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.together import tell_cut
        from weft.runs.load import load, ready

        if self.text is not None and self.data:
            raise UsageError("--data: does not go with a text; give one of them")
        if self.out is not None and self.out.suffix not in (".npy", ".jsonl"):
            raise UsageError(f"--out: {self.out} must end in .npy or .jsonl")
        check_files({"--out": self.out})
        run = load(self.folder, device=self.device)
        if run.task.embed is None:
            raise UsageError(f"{self.folder}: is a run of task {run.settings.task!r}, which has no encoder of texts")
        ready(run)
        note_file(self.text, f"use --data {self.text} to read the file", quiet=self.quiet)
        # who waits for a file waits for its last line
        inputs = Inputs(run, self.text, self.data, Reads(most=LINES, waits=self.out is not None))
        inputs.tell(quiet=self.quiet)
        bad, cut, parts = 0, 0, list[Any]()
        with Display(quiet=self.quiet) as display:
            for entries in inputs.batches():
                faulty, shortened = self._embed(run, entries, display, parts)
                bad, cut = bad + faulty, cut + shortened
        tell_cut(cut, quiet=self.quiet)
        self._write(parts)
        return DataError.exit_code if bad else 0

    def _embed(self, run: AnyRun, entries: Sequence[Entry], display: Any, parts: list[Any]) -> tuple[int, int]:
        """Embed some records: printed at once, or kept in `parts`; how many can't be read, and how many were cut."""
        faults = faults_in(entries)
        tell_faults(entries, faults)

        def progress(what: str, done: int, total: int) -> None:
            display.show(what, done / max(1, total), f"{done:,} of {total:,} lines")

        found = run.embedded(first_texts(entries, faults), pool=self.pool, progress=progress)
        display.clear()
        vectors, counts = found.vectors, (len(faults), int(found.cut.sum()))
        vectors[list(faults)] = float("nan")
        if self.out is not None and self.out.suffix == ".npy":
            parts.append(vectors)
            return counts
        for at, entry in enumerate(entries):
            text = json_line(entry.text, vectors[at], faults.get(at))
            if self.out is None:
                write(text)
            else:
                parts.append(text)
        sys.stdout.flush()
        return counts

    def _write(self, parts: Sequence[Any]) -> None:
        import numpy as np

        from weft import files

        if self.out is None:
            return
        if self.out.suffix == ".jsonl":
            files.write_text(self.out, "".join(parts), named=True)
            return
        held = io.BytesIO()
        np.lib.format.write_array(held, np.concatenate(parts) if parts else np.zeros((0, 0), np.float32))
        files.write_bytes(self.out, held.getvalue(), named=True)
