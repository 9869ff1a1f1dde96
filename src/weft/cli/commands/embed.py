"""`weft embed`: a vector for every line."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import InputFormat, Inputs, first_texts, note_file, problems_in, report_problems
from weft.cli.options import FILES, Device, ModelCommand
from weft.cli.output import check_files, write
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from weft.data.input_records import Entry
    from weft.runs.run import AnyRun

LINES = 65536  # embedded at a time, at most: like lengths are found among them


def _poolings() -> list[str]:
    return ["mean", "first"]


def json_line(line: str | None, vector: np.ndarray, problem: str | None) -> str:
    """A line and its vector, as short as its numbers can be said; no vector where there is none to say."""
    import json

    if problem is not None:
        return json.dumps({"text": line, "vector": None, "error": problem}, ensure_ascii=False) + "\n"
    # the shortest digits that give the same float32 again
    numbers = ",".join(str(value) for value in vector)
    return f'{{"text": {json.dumps(line, ensure_ascii=False)}, "vector": [{numbers}]}}\n'


@dataclass(kw_only=True)
class Embed(ModelCommand):
    """Give every line of standard input a vector: the mean of an encoder's over the line, or that of its first token.

    Prints a line of JSON each, or writes one file: .npy (float32, a row for each line) or .jsonl. Of tables and CoNLL the
    texts are read, as in training. A line that can't be read has no vector (in .npy a row of NaN), a message, and exit code
    3 at the end.
    """

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A line to embed, instead of standard input.")] = None
    input: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    pooling: Annotated[
        str, typer.Option(metavar="NAME", autocompletion=_poolings, help="How a line becomes one vector: mean, or first.")
    ] = "mean"
    output: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the vectors here: x.npy or x.jsonl.")
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.ensemble_options import note_truncated
        from weft.runs.load import load, prepared

        if self.text is not None and self.input:
            raise UsageError("--data", "does not go with a text", "give one of them")
        if self.output is not None and self.output.suffix not in (".npy", ".jsonl"):
            raise UsageError("--output-dir", f"{self.output} must end in .npy or .jsonl")
        check_files({"--output-dir": self.output})
        run = load(self.run_dir, device=self.device)
        if run.task.embed is None:
            raise UsageError(self.run_dir, f"is a run of task {run.config.task!r}, which has no encoder of texts")
        prepared(run)
        note_file(self.text, f"use --data {self.text} to read the file", quiet=self.quiet)
        # who waits for a file waits for its last line
        inputs = Inputs(run, self.text, self.input, InputFormat(batch_size=LINES, waits=self.output is not None))
        inputs.report_file(quiet=self.quiet)
        bad, cut, parts = 0, 0, list[Any]()
        with Display(quiet=self.quiet) as display:
            for entries in inputs.batches():
                faulty, shortened = self._embed(run, entries, display, parts)
                bad, cut = bad + faulty, cut + shortened
        note_truncated(cut, quiet=self.quiet)
        self._write(parts)
        return DataError.exit_code if bad else 0

    def _embed(self, run: AnyRun, entries: Sequence[Entry], display: Any, parts: list[Any]) -> tuple[int, int]:
        """Embed some records: printed at once, or kept in `parts`; how many can't be read, and how many were cut."""
        problems = problems_in(entries)
        report_problems(entries, problems)

        def progress(what: str, done: int, total: int) -> None:
            display.show(what, done / max(1, total), f"{done:,} of {total:,} lines")

        found = run.embed_with_info(first_texts(entries, problems), pool=self.pooling, progress=progress)
        display.clear()
        vectors, counts = found.vectors, (len(problems), int(found.truncated.sum()))
        vectors[list(problems)] = float("nan")
        if self.output is not None and self.output.suffix == ".npy":
            parts.append(vectors)
            return counts
        for at, entry in enumerate(entries):
            text = json_line(entry.text, vectors[at], problems.get(at))
            if self.output is None:
                write(text)
            else:
                parts.append(text)
        sys.stdout.flush()
        return counts

    def _write(self, parts: Sequence[Any]) -> None:
        import numpy as np

        from weft import files

        if self.output is None:
            return
        if self.output.suffix == ".jsonl":
            files.write_text(self.output, "".join(parts), named=True)
            return
        held = io.BytesIO()
        np.lib.format.write_array(held, np.concatenate(parts) if parts else np.zeros((0, 0), np.float32))
        files.write_bytes(self.output, held.getvalue(), named=True)
