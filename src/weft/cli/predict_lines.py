"""The loop of all commands that predict: lines or records are read, predicted from, and printed with what became of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft.cli.entries import Inputs, Reads, faults_in, note_file, tell_faults, written
from weft.cli.output import write, write_exact, write_json
from weft.cli.together import tell_cut, tell_unknown
from weft.config import Table
from weft.errors import DataError
from weft.tasks.lines import Lines
from weft.tasks.spec import Fault

if TYPE_CHECKING:
    from weft.data.records import Entry
    from weft.runs.run import AnyRun


class Asked(Protocol):
    """The fields of a command that say what is read, and how results are printed."""

    text: str | None
    data: list[Path] | None
    json: bool
    quiet: bool


def predict_lines(run: AnyRun, options: Table, asked: Asked, *, beside: Path | None = None) -> int:
    """Print what every record becomes; files that tell more of a prediction go into the folder `beside`. The exit code."""
    if run.task.lines is None:
        raise run.refuse(f"use weft {run.task.use}")
    lines = run.task.lines(run.settings, options)
    note_file(asked.text, f"use --data {asked.text} to read the file", quiet=asked.quiet)
    inputs = Inputs(run, asked.text, asked.data, Reads(lines.split, lines.batch))
    run.try_predict([], lines.options([]))  # options that this model can't follow are refused before a line is read
    table = lines.tables and not asked.json
    inputs.tell(quiet=asked.quiet, writes=table)
    if table:
        inputs.refuse_unlike(asked.data)
        write_exact(inputs.form.head(lines.columns))
    loop = _Loop(run, lines, inputs, asked, beside)
    for entries in inputs.batches():
        loop.print(entries)
        sys.stdout.flush()
    tell_cut(loop.truncated, lines.item, quiet=asked.quiet)
    tell_unknown(loop.unknown, quiet=asked.quiet)
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
        faults, found = self._predicted(entries)
        tell_faults(entries, faults)
        for at, entry in enumerate(entries):
            self._print(entry, self.done + at + 1, found.get(at), faults.get(at))
        self.done, self.bad = self.done + len(entries), self.bad + len(faults)

    def _predicted(self, entries: Sequence[Entry]) -> tuple[dict[int, str], dict[int, Any]]:
        """Why records have no prediction, and the predictions of the others, both by their number in the batch from 0."""
        faults = faults_in(entries)
        read = {at: self.lines.parse(entry.texts) for at, entry in enumerate(entries) if at not in faults}
        filled = {at: one for at, one in read.items() if one is not None and not isinstance(one, Fault)}
        options = self.lines.options([self.done + at + 1 for at in filled])
        results = dict(zip(filled, self.run.try_predict(list(filled.values()), options) if filled else [], strict=True))
        faults |= {at: one.reason for at, one in (read | results).items() if isinstance(one, Fault)}
        found = {at: one for at, one in results.items() if at not in faults}
        self.truncated += sum(map(self.lines.truncated, found.values()))
        self.unknown.update(self.run.task.unknown(self.run, [filled[at] for at in found]) if found else ())
        return faults, found

    def _print(self, entry: Entry, number: int, prediction: Any, fault: str | None) -> None:
        if self.beside is not None and prediction is not None:
            self._write_files(self.lines.files(entry, prediction, f"{number:06d}"), self.beside)
        if self.asked.json:
            error = {} if fault is None else {"error": fault}
            write_json({**self.lines.json(entry, prediction), **error}, indent=None)
        elif self.inputs.form.plain or not self.lines.tables:
            write(self.lines.text(prediction, None if self.asked.text is not None else number))
        else:
            write_exact(written(self.inputs, entry, self.lines.values(prediction), fault))

    def _write_files(self, named: Mapping[str, bytes], place: Path) -> None:
        from weft import files

        place.mkdir(parents=True, exist_ok=True)
        for name, data in named.items():
            files.write_bytes(place / name, data)
