"""The loop of all commands that predict: lines or records are read, predicted from, and printed with what became of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft.cli.ensemble_options import note_truncated, note_unknown
from weft.cli.inputs import InputFormat, Inputs, note_file, problems_in, report_problems, written
from weft.cli.output import write, write_exact, write_json
from weft.config import Config
from weft.errors import DataError
from weft.tasks.lines import Lines
from weft.tasks.spec import Fault

if TYPE_CHECKING:
    from weft.data.input_records import Entry
    from weft.runs.run import AnyRun


class Asked(Protocol):
    """The fields of a command that say what is read, and how results are printed."""

    text: str | None
    input: list[Path] | None
    json: bool
    quiet: bool


def predict_lines(run: AnyRun, options: Config, asked: Asked, *, beside: Path | None = None) -> int:
    """Print what every record becomes; files that tell more of a prediction go into the folder `beside`. The exit code."""
    if run.task.lines is None:
        raise run.refuse(f"use weft {run.task.use}")
    lines = run.task.lines(run.config, options)
    note_file(asked.text, f"use --input {asked.text} to read the file", quiet=asked.quiet)
    inputs = Inputs(run, asked.text, asked.input, InputFormat(lines.split, lines.batch))
    run.try_predict([], lines.options([]))  # options that this model can't follow are refused before a line is read
    table = lines.tables and not asked.json
    inputs.report_file(quiet=asked.quiet, writes=table)
    if table:
        inputs.refuse_unlike(asked.input)
        write_exact(inputs.form.head(lines.columns))
    loop = _Loop(run, lines, inputs, asked, beside)
    for entries in inputs.batches():
        loop.print(entries)
        sys.stdout.flush()
    note_truncated(loop.truncated, lines.item, quiet=asked.quiet)
    note_unknown(loop.unknown, quiet=asked.quiet)
    if table:
        write(inputs.form.tail())
    return DataError.exit_code if loop.bad else 0


class _Loop:
    """Prints batches of records, and counts what is to be told at the end."""

    def __init__(self, run: AnyRun, lines: Lines[Any, Any], inputs: Inputs, asked: Asked, beside: Path | None) -> None:
        self.run, self.lines, self.inputs, self.asked, self.beside = run, lines, inputs, asked, beside
        self.done, self.bad, self.truncated, self.unknown = 0, 0, 0, Counter[str]()

    def print(self, entries: Sequence[Entry]) -> None:
        """Print what records become."""
        problems, found = self._predicted(entries)
        report_problems(entries, problems)
        for at, entry in enumerate(entries):
            self._print(entry, self.done + at + 1, found.get(at), problems.get(at))
        self.done, self.bad = self.done + len(entries), self.bad + len(problems)

    def _predicted(self, entries: Sequence[Entry]) -> tuple[dict[int, str], dict[int, Any]]:
        """Why records have no prediction, and the predictions of the others, both by their number in the batch from 0."""
        problems = problems_in(entries)
        read = {at: self.lines.parse(entry.texts) for at, entry in enumerate(entries) if at not in problems}
        filled = {at: one for at, one in read.items() if one is not None and not isinstance(one, Fault)}
        options = self.lines.options([self.done + at + 1 for at in filled])
        results = dict(zip(filled, self.run.try_predict(list(filled.values()), options) if filled else [], strict=True))
        problems |= {at: one.reason for at, one in (read | results).items() if isinstance(one, Fault)}
        found = {at: one for at, one in results.items() if at not in problems}
        self.truncated += sum(map(self.lines.truncated, found.values()))
        self.unknown.update(self.run.task.unknown(self.run, [filled[at] for at in found]) if found else ())
        return problems, found

    def _print(self, entry: Entry, number: int, prediction: Any, problem: str | None) -> None:
        if self.beside is not None and prediction is not None:
            self._write_files(self.lines.files(entry, prediction, f"{number:06d}"), self.beside)
        if self.asked.json:
            error = {} if problem is None else {"error": problem}
            write_json({**self.lines.json(entry, prediction), **error}, indent=None)
        elif self.inputs.form.is_plain or not self.lines.tables:
            write(self.lines.text(prediction, None if self.asked.text is not None else number))
        else:
            write_exact(written(self.inputs, entry, self.lines.values(prediction), problem))

    def _write_files(self, named: Mapping[str, bytes], place: Path) -> None:
        from weft import files

        place.mkdir(parents=True, exist_ok=True)
        for name, data in named.items():
            files.write_bytes(place / name, data)
