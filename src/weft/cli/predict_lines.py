"""The loop of `weft predict`: read lines or records, predict, print.

The processes of a group predict together: the first one reads a batch of records and gives it to the others, each predicts some
of them, and the first one prints all results in the order of the input.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft.cli.ensemble_options import warn_truncated, warn_unknown
from weft.cli.inputs import InputFormat, Inputs, note_if_file, warn_problems, with_values
from weft.cli.output import write, write_exact, write_json, write_styled
from weft.cli.predict_part import Form, Part, PartForm, Predictor
from weft.config import Config
from weft.errors import DataError
from weft.parallel.group import ALONE, Group

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord
    from weft.runs.run import AnyRun


class PredictCommand(Protocol):
    """The fields of a command that select the input and the format of results."""

    text: str | None
    input: list[Path] | None
    json: bool
    quiet: bool


def predict_lines(
    run: AnyRun,
    options: Config,
    command: PredictCommand,
    *,
    extra_dir: Path | None = None,
    header: str = "",
    group: Group = ALONE,
) -> int:
    """Print the prediction of every record, and return the exit code. Additional files, such as alignments, are written to
    `extra_dir`; on a terminal, `header` is printed above the results."""
    if run.spec.line_format is None:
        raise run.wrong_task()
    lines = run.spec.line_format(run.config, options)
    if group.leads and not lines.reads_files:
        note_if_file(command.text, f"use --input {command.text} to read the file", quiet=command.quiet)
    run.try_predict([], lines.options([]))  # options that the model does not support are refused before a line is read
    group.begin()
    if not group.leads:
        _follow(Predictor(run, lines), group)
        return 0
    inputs = Inputs(run, command.text, command.input, InputFormat(lines.split, lines.batch_size * group.size))
    is_table = lines.outputs_tables and not command.json
    inputs.note_formats(quiet=command.quiet, writes=is_table)
    if is_table:
        inputs.refuse_mixed(command.input)
        write_exact(inputs.form.head(lines.columns))
    if header and sys.stdout.isatty() and not command.json and inputs.form.is_plain:
        write_styled([(header, "dim")])
    loop = _Loop(Predictor(run, lines), inputs, command, extra_dir, group)
    for entries in inputs.batches():
        loop.print(entries)
        sys.stdout.flush()
    group.announce(_key(loop.rounds), None)
    group.end()
    warn_truncated(loop.truncated, lines.unit, quiet=command.quiet)
    warn_unknown(loop.unknown, quiet=command.quiet)
    if is_table:
        write(inputs.form.tail())
    return DataError.exit_code if loop.num_invalid else 0


# ---- several processes


def _key(number: int) -> str:
    """The name of a batch that the first process announces."""
    return f"predict/{number}"


def _own_records(entries: Sequence[InputRecord], group: Group) -> Sequence[int] | None:
    """The indices of the records that this process predicts, about as long as those of the others; None: all."""
    if group.size == 1:
        return None
    return sorted(range(len(entries)), key=lambda index: -len(entries[index].text or ""))[group.rank :: group.size]


def _follow(predictor: Predictor, group: Group) -> None:
    """Predict as one of the processes that neither read nor print."""
    from weft.data.input_records import InputRecord

    number = 0
    while (batch := group.await_leader(_key(number))) is not None:
        first, form, rows = batch
        entries = [InputRecord(*row) for row in rows]
        entries = [entry._replace(texts=tuple(entry.texts), keys=tuple(entry.keys)) for entry in entries]  # JSON has lists
        part = predictor.part(entries, first, PartForm(*form), _own_records(entries, group))
        group.meet()
        group.gather(part.to_json())
        number += 1


class _Loop:
    """Prints the predictions of batches, and counts problems for the final report."""

    def __init__(
        self, predictor: Predictor, inputs: Inputs, command: PredictCommand, extra_dir: Path | None, group: Group
    ) -> None:
        self.predictor, self.inputs, self.command, self.extra_dir, self.group = predictor, inputs, command, extra_dir, group
        self.done, self.num_invalid, self.truncated, self.unknown = 0, 0, 0, Counter[str]()
        self.rounds = 0  # batches so far
        is_text = inputs.form.is_plain or not predictor.lines.outputs_tables
        form: Form = "json" if command.json else "text" if is_text else "table"
        self.form = PartForm(form, command.text is None, extra_dir is not None)

    def print(self, entries: Sequence[InputRecord]) -> None:
        """Print the predictions of a batch."""
        parts = self._parts(entries)
        problems = {index: problem for part in parts for index, problem in part.problems.items()}
        outputs = {index: output for part in parts for index, output in part.outputs.items()}
        files = {index: contents for part in parts for index, contents in part.files.items()}
        unknown = {index: tokens for part in parts for index, tokens in part.unknown.items()}
        warn_problems(entries, problems)
        for index, entry in enumerate(entries):
            if index in files and self.extra_dir is not None:
                self._write_files(files[index], self.extra_dir)
            self._print(entry, outputs[index], problems.get(index))
        self.done, self.num_invalid = self.done + len(entries), self.num_invalid + len(problems)
        self.truncated += sum(part.truncated for part in parts)
        for index in sorted(unknown):
            self.unknown.update(unknown[index])

    def _parts(self, entries: Sequence[InputRecord]) -> list[Part]:
        """The results of all processes."""
        key = _key(self.rounds)
        self.group.announce(key, [self.done + 1, self.form, entries])
        part = self.predictor.part(entries, self.done + 1, self.form, _own_records(entries, self.group))
        self.rounds += 1
        if self.group.size == 1:
            return [part]
        self.group.meet()
        parts = [Part.from_json(value) for value in self.group.gather(part.to_json())]
        self.group.withdraw(key)
        return parts

    def _print(self, entry: InputRecord, output: Any, problem: str | None) -> None:
        if self.form.form == "json":
            write_json({**output, **({} if problem is None else {"error": problem})}, indent=None)
        elif self.form.form == "text":
            write(output)
        else:
            write_exact(with_values(self.inputs, entry, output, problem))

    def _write_files(self, contents: Mapping[str, bytes], directory: Path) -> None:
        from weft import files

        directory.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            files.write_bytes(directory / name, data)
