"""Reads labeled texts from files.

    tables and JSON    columns or keys by name; without a header, the first column is the label, the second the text
    other files        each line is a label, whitespace and a text: `DESC:manner How did ...`, `__label__DESC How did ...`
    a directory of files        one file per label, named after it; each line is an example
    a directory of directories  one directory per label, named after it; each file is an example

Blank lines of files that are not tables are skipped and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.columns import DEFAULT_COLUMNS, Cell, ColumnSpec, Name, read_columns
from weft.data.source import display_name
from weft.data.table_rows import NOT_A_TABLE, TableOptions, file_format, file_location, is_conll, is_table
from weft.errors import DataError
from weft.text.compression import COMPRESSED_SUFFIXES
from weft.text.reading import FileSummary, preview, read_file_text, read_lines, read_text

FASTTEXT = "__label__"
_LINE = re.compile(r"([^ \t]+)[ \t]+(.*)")
_FASTTEXT_LINE = re.compile(rf"((?:{FASTTEXT}[^ \t]+(?:[ \t]+|$))+)(.*)")


@dataclass(frozen=True)
class Reading:
    """The options of labeled files."""

    encoding: str = "utf-8"
    text: tuple[Name, ...] = ("text",)
    label: Name = "label"
    multi: bool = False
    separator: str = ","
    coarse: str | None = None
    delimiter: str | None = None
    sheet: str | int | None = None

    def tables(self) -> TableOptions:
        return TableOptions(self.encoding, self.delimiter, self.sheet)

    def provenance(self) -> dict[str, Any]:
        """Options that the records depend on; those of tables only if set."""
        options = {name: value for name, value in asdict(self).items() if name not in ("delimiter", "sheet")}
        return options | self.tables().provenance()

    def columns(self) -> tuple[ColumnSpec, ...]:
        return ColumnSpec("label", self.label), *(ColumnSpec("text", name) for name in self.text)


class File(NamedTuple):
    path: Path
    label: str | None = None  # label of all its examples; None if the file contains the labels
    is_example: bool = False  # the whole file is one example


class Record(NamedTuple):
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    path: Path
    line: int  # first line of the example, from 1


# ---- files and directories


def _listed(directory: Path) -> list[Path]:
    """The entries of a directory, sorted by name, without hidden files."""
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(directory, f"cannot read: {error.strerror}") from None
    if not paths:
        raise DataError(directory, "directory is empty", "add one file or one subdirectory per label")
    return paths


def _by_files(directory: Path, paths: list[Path]) -> list[File]:
    table = next((path.name for path in paths if file_format(path) != "text"), None)
    if table is not None:
        raise DataError(directory, f"directory contains a table ({table})", "use the table itself or one file per label")
    names = [path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path for path in paths]
    # only a suffix that all files share is a file extension: alt.atheism and comp.graphics have none
    has_extension = len({name.suffix for name in names}) == 1
    labels = [name.stem if has_extension else name.name for name in names]
    label, count = Counter(labels).most_common(1)[0]
    if count > 1:
        raise DataError(directory, f"has {count} files for the label {label!r}", "join them, or rename all but one")
    return [File(path, label) for path, label in zip(paths, labels, strict=True)]


def _by_directory(directory: Path) -> list[File]:
    files = _listed(directory)
    inner = next((path for path in files if path.is_dir()), None)
    if inner is not None:
        raise DataError(inner, "directory inside the directory of a label", f"put the examples directly in {directory}")
    return [File(path, directory.name, is_example=True) for path in files]


def find_files(inputs: Sequence[Path]) -> list[File]:
    """The input files, and those in input directories, in order."""
    files: list[File] = []
    for path in inputs:
        if not path.is_dir():
            files.append(File(path))
            continue
        entries = _listed(path)
        directories = [entry for entry in entries if entry.is_dir()]
        if directories and len(directories) < len(entries):
            other = next(entry.name for entry in entries if entry not in directories)
            raise DataError(
                path,
                f"directory contains both directories (such as {directories[0].name}) and files (such as {other})",
                "use one directory per label or one file per label",
            )
        if directories:
            files += chain.from_iterable(map(_by_directory, directories))
        else:
            files += _by_files(path, entries)
    return files


# ---- records


def _labels(cell: Cell, reading: Reading, location: str) -> tuple[str, ...]:
    """The labels in a cell."""
    if isinstance(cell, str):
        cell = cell.split(reading.separator) if reading.multi else [cell]
    names = [name.strip() for name in cell]
    if reading.coarse is not None:
        names = [name.partition(reading.coarse)[0].strip() for name in names]
    invalid = next((name for name in names if "\n" in name or "\t" in name), None)
    if invalid is not None:
        problem = f"the label {preview(invalid, 40)!r} has a tab or a newline"
        raise DataError(location, problem, "is data.label_column the right column?")
    if reading.multi:
        return tuple(dict.fromkeys(filter(None, names)))
    if len(names) > 1:
        raise DataError(location, f"more than one label ({preview(', '.join(names), 80)})", "set data.multilabel = true")
    if not any(names):
        raise DataError(location, "label is missing", "add one or set data.multilabel = true")
    return tuple(names)


Row = tuple[int, Cell, tuple[str, ...]]  # line number, labels, texts


def _read_table(file: File, reading: Reading, summary: FileSummary) -> Iterator[Row]:
    for line, (label, *texts) in read_columns(file.path, reading.columns(), reading.tables(), summary):
        yield line, label, tuple(text for text in texts if isinstance(text, str))


_TAG = re.compile("O|[BIESLU]-[^ \t]+")
SAMPLE_LINES = 400  # by which the format of a file is detected
MIN_WORDS = 20  # to detect tagged words where the format is ambiguous


def are_tagged(lines: Sequence[str]) -> bool:
    """Whether lines are words with tags: an equal number of columns, of which the last has span tags, or far fewer distinct
    values than the first; or the ten columns of CoNLL-U."""
    rows = [line.split() for line in lines if line.strip() and not line.startswith(("# ", "-DOCSTART-"))]
    if len(rows) < 2 or len(rows[0]) < 2 or len({len(row) for row in rows}) > 1:
        return False
    first, last, has_blank_lines = {row[0] for row in rows}, {row[-1] for row in rows}, "" in lines[:-1]
    if all(map(_TAG.fullmatch, last)):
        return last != {"O"} and (has_blank_lines or len(rows) >= MIN_WORDS)
    if len(rows[0]) == 10:
        return all(re.fullmatch(r"[0-9]+([-.][0-9]+)?", name) for name in first)
    return len(rows[0]) == 2 and len(rows) >= MIN_WORDS and has_blank_lines and 3 * len(last) < len(first)


def _refuse_tagged(path: Path, lines: Iterator[str]) -> Iterator[str]:
    """The same lines; an error if they are words with tags, which would be read as labels with texts."""
    sample = list(islice(lines, SAMPLE_LINES))
    if are_tagged(sample):
        raise DataError(
            path,
            'looks like CoNLL, one word with its tag per line, which task = "tagging" reads',
            "use a table, lines or directories",
        )
    return chain(sample, lines)


def _split_label(line: str, location: str, *, fasttext: bool) -> tuple[Cell, tuple[str, ...]]:
    """The label or labels of a line, and its text."""
    if line[0] in " \t":
        raise DataError(location, f"starts with whitespace, expected a label: {preview(line, 40)}")
    if fasttext and not line.startswith(FASTTEXT):
        raise DataError(location, f"expected {FASTTEXT} at the start, as in the first line: {preview(line, 40)}")
    match = (_FASTTEXT_LINE if fasttext else _LINE).fullmatch(line)
    if match is None:
        raise DataError(location, f"no text after the label: {preview(line, 40)}", "use lines of label, whitespace and text")
    if not fasttext:
        return match[1], (match[2],)
    if FASTTEXT in match[2]:
        raise DataError(location, f"{FASTTEXT} inside the text: {preview(match[2], 40)}", "put labels first")
    return re.findall(rf"{FASTTEXT}([^ \t]+)", match[1]), (match[2],)


def _read_lines(file: File, reading: Reading, summary: FileSummary) -> Iterator[Row]:
    fasttext: bool | None = None
    lines = read_lines(file.path, reading.encoding, summary)
    if file.label is None:
        lines = _refuse_tagged(file.path, lines)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            summary.blank += 1
            continue
        if file.label is not None:
            yield number, file.label, (line,)
            continue
        if fasttext is None:
            fasttext = line.startswith(FASTTEXT)
            prefix = f"{FASTTEXT}, fastText style" if fasttext else "a label"
            summary.notes.append(f"{file.path.name}: lines start with {prefix}")
        yield number, *_split_label(line, f"{file.path}: line {number}", fasttext=fasttext)


def _read_file(file: File, reading: Reading, summary: FileSummary, *, allow_empty: bool) -> Iterator[Row]:
    """The whole file as one example. `read_text` raises if the file is empty."""
    if allow_empty:
        text = read_file_text(file.path, reading.encoding, summary)
    else:
        text = "".join(read_text(file.path, reading.encoding, summary))
    yield 1, file.label or "", (text.removesuffix("\n"),)


def _read(file: File, reading: Reading, summary: FileSummary, *, allow_empty: bool) -> Iterator[Row]:
    if file.is_example:
        return _read_file(file, reading, summary, allow_empty=allow_empty)
    if is_table(file.path, reading.delimiter):
        return _read_table(file, reading, summary)
    return _read_lines(file, reading, summary)


def _refuse_columns(file: File, reading: Reading) -> None:
    """Raise if options of tables are set for a file that is not a table."""
    for column in reading.columns():
        if column not in DEFAULT_COLUMNS:
            raise DataError(
                file.path,
                f"{NOT_A_TABLE}, but data.{column.role}_column = {column.name!r}",
                f"remove data.{column.role}_column or use a table",
            )
    for option, value in reading.tables().provenance().items():
        raise DataError(
            file.path,
            f"is {NOT_A_TABLE}, but data.{option} = {value!r}",
            f"remove data.{option} or use a table",
        )


def refuse_conll(path: Path) -> None:
    """Raise for CoNLL files: their lines would be read as texts."""
    if is_conll(path):
        raise DataError(path, "CoNLL file, but this run reads labeled texts", "use a table, lines or directories")


def read_records(files: Sequence[File], reading: Reading, summary: FileSummary, *, skip_empty: bool = True) -> Iterator[Record]:
    """All examples of the files, in order. Examples without a text are skipped and counted, or an error without `skip_empty`.
    One text of a pair may be empty."""
    num_records = 0
    for file in files:
        if file.is_example or file.label is not None or not is_table(file.path, reading.delimiter):
            _refuse_columns(file, reading)
            if file.label is None:
                refuse_conll(file.path)
        for line, cell, texts in _read(file, reading, summary, allow_empty=skip_empty):
            location = file_location(file.path, line)
            labels = _labels(cell, reading, location)
            if any(text.strip() for text in texts):
                num_records += 1
                yield Record(texts, labels, file.path, line)
            elif skip_empty:
                summary.skip(location)
            else:
                problem = (
                    f"has the label {preview(', '.join(labels), 40)} but no text" if labels else "has neither label nor text"
                )
                raise DataError(location, problem, "add a text or remove it")
    if not num_records and summary.skipped:
        name = display_name([file.path for file in files])
        raise DataError(name, f"all {summary.skipped:,} examples are without text", "is data.text_column the right column?")
