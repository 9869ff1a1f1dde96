"""What commands read that use a run: a text, lines of standard input, or records of files as those of training are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from weft.cli.output import note, print_error
from weft.cli.usage import one_line
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.cli.input_lines import Line
    from weft.data.input_records import Entry, Form, OpenedRecords, Values
    from weft.runs.run import AnyRun

# the texts of a line, and what is wrong with them, if something is
Parse = Callable[[str], "tuple[tuple[str, ...], str | None]"]


def whole(line: str) -> tuple[tuple[str, ...], str | None]:
    """A line that is a text."""
    return (line,), None


def note_file(text: str | None, fix: str, *, quiet: bool) -> None:
    """Say that a text is the name of a file, if it is: it is not opened."""
    if text is None or not text or len(text) > 255 or not text.isprintable():
        return
    try:
        found = Path(text).is_file()
    except OSError:
        return
    if found:
        note(f"weft: {text} is the name of a file, and is read as text; {fix}", quiet=quiet)


class InputFormat(NamedTuple):
    """How a command reads records."""

    parse: Parse = whole  # of a line
    batch_size: int = 1024  # records at a time
    targets: bool = False  # of pairs, too
    waits: bool = False  # for all of standard input, not for what is there


DEFAULT_READS = InputFormat()


class Inputs:
    """The records that a command is asked about."""

    def __init__(self, run: AnyRun, text: str | None, files: Sequence[Path] | None, reads: InputFormat = DEFAULT_READS) -> None:
        from weft.data.input_records import PlainForm

        if text is not None and files:
            raise UsageError("--input", "does not go with a text", "give one of them")
        self.text, self.reads, self.encoding = text, reads, run.config.data.encoding
        self.count = 0  # lines that were read
        self.files = [self._open(run, path) for path in files or ()]
        self.form: Form = self.files[0].form if self.files else PlainForm()

    def _open(self, run: AnyRun, path: Path) -> OpenedRecords:
        from weft.cli.input_lines import raw_lines
        from weft.data.input_records import InputFile, OpenedRecords, PlainForm

        read = partial(raw_lines, path, self.encoding)
        file = InputFile(path, lambda: (line.text for line in read()), run.labels, self.reads.targets, read)
        opened = run.task.data.open(run.config.data, file)
        if opened is None:
            return OpenedRecords(PlainForm(), self._of_lines(path))
        return OpenedRecords(opened.form, self._checked(path, opened.entries), opened.notes, opened.writes)

    def report_file(self, *, quiet: bool, writes: bool = False) -> None:
        """Say how files are read, and, where the command `writes` them again, how."""
        for file in self.files:
            for at, one in enumerate(file.notes):
                note(f"weft: {one_line(one + (file.writes if writes and at == 0 else ''))}", quiet=quiet)

    def refuse_unlike(self, files: Sequence[Path] | None) -> None:
        """Refuse files whose records can't stand in one."""
        for path, file in zip(files or (), self.files, strict=True):
            if not file.form.matches(self.form):
                first = (files or [path])[0]
                raise UsageError("--input", f"{path} and {first} are of two kinds, or have other columns", "give one at a time")

    # ---- records

    def _entry(self, line: Line) -> Entry:
        from weft.data.input_records import Entry

        self.count += 1
        if isinstance(line, DataError):
            return Entry(None, (), "", "", str(line))
        texts, problem = self.reads.parse(line)
        return Entry(line, texts, f"line {self.count}", line, problem)

    def _of_lines(self, path: Path) -> Iterator[Entry]:
        from weft.cli.input_lines import any_lines

        return map(self._entry, any_lines([path], self.encoding))

    def _checked(self, path: Path, entries: Iterator[Entry]) -> Iterator[Entry]:
        """The records of a file; what can't be read of them is a fault."""
        from weft.cli.input_lines import invalid_line

        for entry in entries:
            read = f"{entry.raw}\n{entry.text}"  # of SQuAD's questions, the first is an id
            problem = invalid_line(read, self.encoding, entry.where) if entry.fault is None else None
            yield entry if problem is None else entry._replace(text=None, texts=(), where="", fault=str(problem))

    def batches(self) -> Iterator[list[Entry]]:
        """All records, some at a time; of standard input those that are there."""
        from weft.cli.input_lines import any_lines, batched, standard_groups

        if self.text is not None:
            yield [self._entry(self.text)]
        elif self.files:
            for file in self.files:
                yield from batched(file.entries, self.reads.batch_size)
        elif self.reads.waits:
            yield from batched(map(self._entry, any_lines(None, self.encoding)), self.reads.batch_size)
        else:
            for group in standard_groups(self.encoding, self.reads.batch_size):
                yield [self._entry(line) for line in group]


# ---- faults


def problems_in(entries: Sequence[Entry]) -> dict[int, str]:
    """Which records can't be used, by their number from 0, and why."""
    return {at: entry.fault for at, entry in enumerate(entries) if entry.fault is not None}


def report_problems(entries: Sequence[Entry], problems: Mapping[int, str]) -> None:
    """Say which records give no result."""
    for at in sorted(problems):
        where = f"{entries[at].where}: " if entries[at].where else ""
        print_error(f"weft: {one_line(where + problems[at])}")


def first_texts(entries: Sequence[Entry], problems: Mapping[int, str]) -> list[str]:
    """The text of each record; one with a fault is as an empty one."""
    return ["" if at in problems else (entry.text or "") for at, entry in enumerate(entries)]


def as_line(entry: Entry) -> Line:
    """The text of a record, or why it can't be used, with its place."""
    if entry.fault is None:
        return entry.text or ""
    return DataError("", f"{entry.where}: {entry.fault}" if entry.where else entry.fault)


def written(inputs: Inputs, entry: Entry, values: Values, problem: str | None) -> str:
    """A record of a file with what is added to it."""
    return inputs.form.row(entry if problem is None else entry._replace(fault=problem), values)
