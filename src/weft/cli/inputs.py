"""What commands read that use a run: one text, lines of standard input, or records of files, read as in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from weft.cli.output import note, warn
from weft.cli.usage import one_line
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.cli.input_lines import Line
    from weft.data.input_records import InputRecord, OpenedRecords, OutputFormat, Values
    from weft.runs.run import AnyRun

# the texts of a line, and their problem, if any
Parse = Callable[[str], "tuple[tuple[str, ...], str | None]"]
MAX_NAME_CHARS = 255  # of a file


def whole_line(line: str) -> tuple[tuple[str, ...], str | None]:
    """A line that is one text."""
    return (line,), None


def note_if_file(text: str | None, fix: str, *, quiet: bool) -> None:
    """Report that a text is the name of an existing file, which is not opened."""
    if text is None or not text or len(text) > MAX_NAME_CHARS or not text.isprintable():
        return
    try:
        is_file = Path(text).is_file()
    except OSError:
        return
    if is_file:
        note(f"{text} is the name of a file, but is read as text; {fix}", quiet=quiet)


class InputFormat(NamedTuple):
    """How a command reads records."""

    parse: Parse = whole_line
    batch_size: int = 1024  # records at a time
    targets: bool = False  # also read the targets of pairs
    waits: bool = False  # read all of standard input before the first result


DEFAULT_FORMAT = InputFormat()


class Inputs:
    """The inputs of a command."""

    def __init__(
        self, run: AnyRun, text: str | None, files: Sequence[Path] | None, format: InputFormat = DEFAULT_FORMAT
    ) -> None:
        from weft.data.input_records import PlainOutput

        if text is not None and files:
            raise UsageError("input", "cannot be combined with a text argument")
        self.text, self.format, self.encoding = text, format, run.config.data.encoding
        self.count = 0  # lines read so far
        self.files = [self._open(run, path) for path in files or ()]
        self.form: OutputFormat = self.files[0].form if self.files else PlainOutput()

    def _open(self, run: AnyRun, path: Path) -> OpenedRecords:
        from weft.cli.input_lines import raw_lines
        from weft.data.input_records import InputFile, OpenedRecords, PlainOutput

        read = partial(raw_lines, path, self.encoding)
        file = InputFile(path, lambda: (line.text for line in read()), run.labels, self.format.targets, read)
        opened = run.spec.data.open_input(run.config.data, file)
        if opened is None:
            return OpenedRecords(PlainOutput(), self._line_entries(path))
        return OpenedRecords(opened.form, self._checked(opened.entries), opened.notes, opened.writes)

    def note_formats(self, *, quiet: bool, writes: bool = False) -> None:
        """Report how files are read and, if the command `writes` them, how they are written."""
        for file in self.files:
            for index, text in enumerate(file.notes):
                note(one_line(text + (file.writes if writes and index == 0 else "")), quiet=quiet)

    def refuse_mixed(self, files: Sequence[Path] | None) -> None:
        """Refuse files whose records cannot be written to one file."""
        for path, file in zip(files or (), self.files, strict=True):
            if not file.form.matches(self.form):
                first = (files or [path])[0]
                raise UsageError("input", f"{first} and {path} have different formats or columns", "read one at a time")

    # ---- records

    def _entry(self, line: Line) -> InputRecord:
        from weft.data.input_records import InputRecord

        self.count += 1
        if isinstance(line, DataError):
            return InputRecord(None, (), "", "", str(line))
        texts, problem = self.format.parse(line)
        return InputRecord(line, texts, f"line {self.count}", line, problem)

    def _line_entries(self, path: Path) -> Iterator[InputRecord]:
        from weft.cli.input_lines import any_lines

        return map(self._entry, any_lines([path], self.encoding))

    def _checked(self, entries: Iterator[InputRecord]) -> Iterator[InputRecord]:
        """The records of a file, with a problem for each one that is not valid text."""
        from weft.cli.input_lines import invalid_line

        for entry in entries:
            text = f"{entry.raw}\n{entry.text}"  # for SQuAD's questions, `raw` is an ID
            problem = invalid_line(text, self.encoding, entry.where) if entry.problem is None else None
            yield entry if problem is None else entry._replace(text=None, texts=(), where="", problem=str(problem))

    def batches(self) -> Iterator[list[InputRecord]]:
        """All records in batches; from standard input, the lines that are available."""
        from weft.cli.input_lines import any_lines, batched, stdin_batches

        if self.text is not None:
            yield [self._entry(self.text)]
        elif self.files:
            for file in self.files:
                yield from batched(file.entries, self.format.batch_size)
        elif self.format.waits:
            yield from batched(map(self._entry, any_lines(None, self.encoding)), self.format.batch_size)
        else:
            for group in stdin_batches(self.encoding, self.format.batch_size):
                yield [self._entry(line) for line in group]


# ---- problems


def problems_in(entries: Sequence[InputRecord]) -> dict[int, str]:
    """The records that cannot be used, by index, with the reason."""
    return {index: entry.problem for index, entry in enumerate(entries) if entry.problem is not None}


def warn_problems(entries: Sequence[InputRecord], problems: Mapping[int, str]) -> None:
    """Report the records that give no result."""
    for index in sorted(problems):
        location = f"{entries[index].where}: " if entries[index].where else ""
        problem = problems[index].replace("`truncate`", "--truncate")
        warn(one_line(f"{location}{problem}; skipped"))


def first_texts(entries: Sequence[InputRecord], problems: Mapping[int, str]) -> list[str]:
    """The text of each record, with an empty string for each one that cannot be used."""
    return ["" if index in problems else (entry.text or "") for index, entry in enumerate(entries)]


def as_line(entry: InputRecord) -> Line:
    """The text of a record, or why it cannot be used, with its location."""
    if entry.problem is None:
        return entry.text or ""
    return DataError(entry.where, entry.problem)


def with_values(inputs: Inputs, entry: InputRecord, values: Values, problem: str | None) -> str:
    """A record of a file with the new columns added."""
    return inputs.form.row(entry if problem is None else entry._replace(problem=problem), values)
