"""`weft embed`: a vector for each line."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import InputFormat, Inputs, first_texts, note_if_file, problems_in, warn_problems
from weft.cli.options import FILES, Device, InputFiles, ModelCommand, RunDirectory
from weft.cli.output import check_files, write
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from weft.data.input_records import Entry
    from weft.runs.run import AnyRun

BATCH_LINES = 65536  # many at a time, so that batches have similar lengths


def _poolings() -> list[str]:
    return ["mean", "first"]


def json_line(line: str | None, vector: np.ndarray, problem: str | None) -> str:
    """The JSON of a line and its vector, with as few digits as possible; null for an invalid line."""
    import json

    if problem is not None:
        return json.dumps({"text": line, "vector": None, "error": problem}, ensure_ascii=False) + "\n"
    # the shortest decimal that gives the same float32
    numbers = ",".join(str(value) for value in vector)
    return f'{{"text": {json.dumps(line, ensure_ascii=False)}, "vector": [{numbers}]}}\n'


@dataclass(kw_only=True)
class Embed(ModelCommand):
    """Compute a vector for each line.

    The vector is the mean of the encoder's outputs, or the output of the first token. Prints one JSON object per line, or
    writes a file: .npy (float32, one row per line) or .jsonl. Of tables and CoNLL files the texts are read, as in training. A
    line that cannot be used has no vector (in .npy a row of NaN) and gives a warning and exit code 3 at the end.
    """

    run_dir: RunDirectory
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", show_default=False, help="Input; without it, standard input is read.")
    ] = None
    pooling: Annotated[str, typer.Option(metavar="NAME", autocompletion=_poolings, help="mean or first.")] = "mean"
    input: InputFiles = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            rich_help_panel=FILES,
            metavar="FILE",
            help="Output file. The suffix selects the format: .npy or .jsonl.",
        ),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.ensemble_options import warn_truncated
        from weft.runs.load import load, with_model

        if self.text is not None and self.input:
            raise UsageError("input", "cannot be combined with a text argument")
        if self.output is not None and self.output.suffix not in (".npy", ".jsonl"):
            raise UsageError("output", f"{self.output} must end in .npy or .jsonl")
        check_files({"output": self.output})
        run = load(self.run_dir, device=self.device)
        if run.spec.embed is None:
            raise UsageError(self.run_dir, f"models of task {run.config.task!r} have no text encoder")
        with_model(run)
        note_if_file(self.text, f"use --input {self.text} to read the file", quiet=self.quiet)
        # a file is written once, after the last line
        inputs = Inputs(run, self.text, self.input, InputFormat(batch_size=BATCH_LINES, waits=self.output is not None))
        inputs.note_formats(quiet=self.quiet)
        num_invalid, num_truncated, parts = 0, 0, list[Any]()
        with Display(quiet=self.quiet) as display:
            for entries in inputs.batches():
                invalid, truncated = self._embed(run, entries, display, parts)
                num_invalid, num_truncated = num_invalid + invalid, num_truncated + truncated
        warn_truncated(num_truncated, quiet=self.quiet)
        self._write(parts)
        return DataError.exit_code if num_invalid else 0

    def _embed(self, run: AnyRun, entries: Sequence[Entry], display: Any, parts: list[Any]) -> tuple[int, int]:
        """Embed a batch: print it, or add it to `parts`. Returns the numbers of invalid and of truncated records."""
        problems = problems_in(entries)
        warn_problems(entries, problems)

        def progress(phase: str, done: int, total: int) -> None:
            display.show(phase, done / max(1, total), f"{done:,} of {total:,} lines")

        result = run.embed_with_info(first_texts(entries, problems), pooling=self.pooling, progress=progress)
        display.clear()
        vectors, counts = result.vectors, (len(problems), int(result.truncated.sum()))
        vectors[list(problems)] = float("nan")
        if self.output is not None and self.output.suffix == ".npy":
            parts.append(vectors)
            return counts
        for index, entry in enumerate(entries):
            text = json_line(entry.text, vectors[index], problems.get(index))
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
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.concatenate(parts) if parts else np.zeros((0, 0), np.float32))
        files.write_bytes(self.output, buffer.getvalue(), named=True)
