"""The loop of `weft predict`: read lines or records, predict, print."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft.cli.ensemble_options import warn_truncated, warn_unknown
from weft.cli.inputs import InputFormat, Inputs, note_if_file, problems_in, warn_problems, with_values
from weft.cli.output import write, write_exact, write_json, write_styled
from weft.cli.usage import with_flags
from weft.config import Config
from weft.errors import DataError
from weft.tasks.lines import Lines
from weft.tasks.spec import InvalidInput

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
    run: AnyRun, options: Config, command: PredictCommand, *, extra_dir: Path | None = None, header: str = ""
) -> int:
    """Print the prediction of every record, and return the exit code. Additional files, such as alignments, are written to
    `extra_dir`; on a terminal, `header` is printed above the results."""
    if run.spec.line_format is None:
        raise run.wrong_task()
    lines = run.spec.line_format(run.config, options)
    if not lines.reads_files:
        note_if_file(command.text, f"use --input {command.text} to read the file", quiet=command.quiet)
    inputs = Inputs(run, command.text, command.input, InputFormat(lines.split, lines.batch_size))
    run.try_predict([], lines.options([]))  # options that the model does not support are refused before a line is read
    is_table = lines.outputs_tables and not command.json
    inputs.note_formats(quiet=command.quiet, writes=is_table)
    if is_table:
        inputs.refuse_mixed(command.input)
        write_exact(inputs.form.head(lines.columns))
    if header and sys.stdout.isatty() and not command.json and inputs.form.is_plain:
        write_styled([(header, "dim")])
    loop = _Loop(run, lines, inputs, command, extra_dir)
    for entries in inputs.batches():
        loop.print(entries)
        sys.stdout.flush()
    warn_truncated(loop.truncated, lines.unit, quiet=command.quiet)
    warn_unknown(loop.unknown, quiet=command.quiet)
    if is_table:
        write(inputs.form.tail())
    return DataError.exit_code if loop.num_invalid else 0


class _Loop:
    """Prints the predictions of batches, and counts problems for the final report."""

    def __init__(
        self, run: AnyRun, lines: Lines[Any, Any], inputs: Inputs, command: PredictCommand, extra_dir: Path | None
    ) -> None:
        self.run, self.lines, self.inputs, self.command, self.extra_dir = run, lines, inputs, command, extra_dir
        self.done, self.num_invalid, self.truncated, self.unknown = 0, 0, 0, Counter[str]()

    def print(self, entries: Sequence[InputRecord]) -> None:
        """Print the predictions of a batch."""
        problems, predictions = self._predict(entries)
        warn_problems(entries, problems)
        for index, entry in enumerate(entries):
            self._print(entry, self.done + index + 1, predictions.get(index), problems.get(index))
        self.done, self.num_invalid = self.done + len(entries), self.num_invalid + len(problems)

    def _predict(self, entries: Sequence[InputRecord]) -> tuple[dict[int, str], dict[int, Any]]:
        """Problems and predictions of the records, both by index in the batch."""
        problems = problems_in(entries)
        parsed = {index: self.lines.parse(entry.texts) for index, entry in enumerate(entries) if index not in problems}
        inputs = {index: item for index, item in parsed.items() if item is not None and not isinstance(item, InvalidInput)}
        options = self.lines.options([self.done + index + 1 for index in inputs])
        results = dict(zip(inputs, self.run.try_predict(list(inputs.values()), options) if inputs else [], strict=True))
        problems |= {
            index: with_flags(item.reason) for index, item in (parsed | results).items() if isinstance(item, InvalidInput)
        }
        predictions = {index: item for index, item in results.items() if index not in problems}
        self.truncated += sum(map(self.lines.truncated, predictions.values()))
        texts = [inputs[index] for index in predictions]
        self.unknown.update(self.run.spec.unknown_tokens(self.run, texts) if predictions else ())
        return problems, predictions

    def _print(self, entry: InputRecord, number: int, prediction: Any, problem: str | None) -> None:
        if self.extra_dir is not None and prediction is not None:
            self._write_files(self.lines.files(entry, prediction, f"{number:06d}"), self.extra_dir)
        if self.command.json:
            error = {} if problem is None else {"error": problem}
            write_json({**self.lines.json(entry, prediction), **error}, indent=None)
        elif self.inputs.form.is_plain or not self.lines.outputs_tables:
            write(self.lines.text(prediction, None if self.command.text is not None else number))
        else:
            write_exact(with_values(self.inputs, entry, self.lines.values(prediction), problem))

    def _write_files(self, contents: Mapping[str, bytes], directory: Path) -> None:
        from weft import files

        directory.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            files.write_bytes(directory / name, data)
