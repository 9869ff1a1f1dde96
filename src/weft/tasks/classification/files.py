"""Labelled texts from files, example by example. All of it comes through the gate.

    tables and JSON    columns or keys by name; without a header the first column is the label, the next one the text
    any other file     a line is a label, white space, and a text: `DESC:manner How did ...`, `__label__DESC How did ...`
    a directory of files        one file per label, which is its name; every line is an example
    a directory of directories  one directory per label, which is its name; every file in it is an example

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
from weft.data.table_rows import NOT_A_TABLE, TableOptions, file_format, file_location, is_conll
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
        """What is read depends on: all of it, as far as it is given."""
        usual = {name: value for name, value in asdict(self).items() if name not in ("delimiter", "sheet")}
        return usual | self.tables().provenance()

    def columns(self) -> tuple[ColumnSpec, ...]:
        return ColumnSpec("label", self.label), *(ColumnSpec("text", name) for name in self.text)


class File(NamedTuple):
    path: Path
    label: str | None = None  # of all that is in it; None: its lines say theirs
    is_whole: bool = False  # the file is one example, not one per line


class Record(NamedTuple):
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    path: Path
    line: int  # where it starts in that file, from 1


# ---- which files


def _listed(directory: Path) -> list[Path]:
    """The contents of a directory by name, without hidden files."""
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(directory, f"cannot read: {error.strerror}") from None
    if not paths:
        raise DataError(directory, "directory is empty", "add one file or one subdirectory per label")
    return paths


def _by_files(directory: Path, paths: list[Path]) -> list[File]:
    config = next((path.name for path in paths if file_format(path) != "text"), None)
    if config is not None:
        raise DataError(directory, f"directory contains a table ({config})", "use the table itself or one file per label")
    names = [path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path for path in paths]
    # .txt, if it is that of all: alt.atheism and comp.graphics have none
    shared = len({name.suffix for name in names}) == 1
    labels = [name.stem if shared else name.name for name in names]
    label, count = Counter(labels).most_common(1)[0]
    if count > 1:
        raise DataError(directory, f"has {count} files for the label {label!r}", "join them, or rename all but one")
    return [File(path, label) for path, label in zip(paths, labels, strict=True)]


def _by_folders(directory: Path) -> list[File]:
    files = _listed(directory)
    inner = next((path for path in files if path.is_dir()), None)
    if inner is not None:
        raise DataError(inner, "directory inside the directory of a label", f"put the examples directly in {directory}")
    return [File(path, directory.name, is_whole=True) for path in files]


def find_files(given: Sequence[Path]) -> list[File]:
    """The files that are meant, in order: what is given, or what is in it."""
    files: list[File] = []
    for path in given:
        if not path.is_dir():
            files.append(File(path))
            continue
        found = _listed(path)
        directories = [inner for inner in found if inner.is_dir()]
        if directories and len(directories) < len(found):
            other = next(inner.name for inner in found if inner not in directories)
            raise DataError(
                path,
                f"directory contains both directories (such as {directories[0].name}) and files (such as {other})",
                "use one directory per label or one file per label",
            )
        files += [file for inner in directories for file in _by_folders(inner)] if directories else _by_files(path, found)
    return files


# ---- what is in them


def _labels(cell: Cell, reading: Reading, where: str) -> tuple[str, ...]:
    """The labels that a cell stands for."""
    value = cell
    if isinstance(value, str):
        value = value.split(reading.separator) if reading.multi else [value]
    names = [name.strip() for name in value]
    if reading.coarse is not None:
        names = [name.partition(reading.coarse)[0].strip() for name in names]
    odd = next((name for name in names if "\n" in name or "\t" in name), None)
    if odd is not None:
        raise DataError(
            where, f"the label {preview(odd, 40)!r} has a tab or a newline", "is data.label_column the right column?"
        )
    if reading.multi:
        return tuple(dict.fromkeys(filter(None, names)))
    if len(names) > 1:
        raise DataError(where, f"more than one label ({preview(', '.join(names), 80)})", "set data.multilabel = true")
    if not any(names):
        raise DataError(where, "label is missing", "add one or set data.multilabel = true")
    return tuple(names)


def _read_table(file: File, reading: Reading, seen: FileSummary) -> Iterator[tuple[int, Cell, tuple[str, ...]]]:
    for line, (label, *texts) in read_columns(file.path, reading.columns(), reading.tables(), seen):
        yield line, label, tuple(text for text in texts if isinstance(text, str))


def _split_label(line: str, where: str, *, fasttext: bool) -> tuple[Cell, tuple[str, ...]]:
    """A line as its label, or labels, and its text."""
    if line[0] in " \t":
        raise DataError(where, f"starts with whitespace, expected a label: {preview(line, 40)}")
    if fasttext and not line.startswith(FASTTEXT):
        raise DataError(where, f"expected {FASTTEXT} at the start, as in the first line: {preview(line, 40)}")
    match = (_FASTTEXT_LINE if fasttext else _LINE).fullmatch(line)
    if match is None:
        raise DataError(where, f"no text after the label: {preview(line, 40)}", "use lines of label, whitespace and text")
    if not fasttext:
        return match[1], (match[2],)
    if FASTTEXT in match[2]:
        raise DataError(where, f"{FASTTEXT} inside the text: {preview(match[2], 40)}", "put labels first")
    return re.findall(rf"{FASTTEXT}([^ \t]+)", match[1]), (match[2],)


def _read_lines(file: File, reading: Reading, seen: FileSummary) -> Iterator[tuple[int, Cell, tuple[str, ...]]]:
    fasttext: bool | None = None
    lines = read_lines(file.path, reading.encoding, seen)
    if file.label is None:
        lines = refuse_tagged(file.path, lines)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            seen.blank += 1
            continue
        if file.label is not None:
            yield number, file.label, (line,)
            continue
        if fasttext is None:
            fasttext = line.startswith(FASTTEXT)
            seen.notes.append(f"{file.path.name}: lines start with {f'{FASTTEXT}, fastText style' if fasttext else 'a label'}")
        yield number, *_split_label(line, f"{file.path}: line {number}", fasttext=fasttext)


_TAG = re.compile("O|[BIESLU]-[^ \t]+")
SAMPLE = 400  # lines by which a file is told
WORDS = 20  # that are needed where it is not plain that there are sentences


def _are_tagged(lines: Sequence[str]) -> bool:
    """Whether lines are words with tags: all of as many columns, the last of which has tags of spans, or far fewer different
    ones than the first; or CoNLL-U's ten columns."""
    rows = [line.split() for line in lines if line.strip() and not line.startswith(("# ", "-DOCSTART-"))]
    if len(rows) < 2 or len(rows[0]) < 2 or len({len(row) for row in rows}) > 1:
        return False
    first, last, parted = {row[0] for row in rows}, {row[-1] for row in rows}, "" in lines[:-1]
    if all(map(_TAG.fullmatch, last)):
        return last != {"O"} and (parted or len(rows) >= WORDS)
    if len(rows[0]) == 10:
        return all(re.fullmatch(r"[0-9]+([-.][0-9]+)?", name) for name in first)
    return len(rows[0]) == 2 and len(rows) >= WORDS and parted and 3 * len(last) < len(first)


def refuse_tagged(path: Path, lines: Iterator[str]) -> Iterator[str]:
    """The same lines; refused where they are words with tags, which would be read as labels with texts."""
    sample = list(islice(lines, SAMPLE))
    if _are_tagged(sample):
        raise DataError(
            path,
            'looks like CoNLL, one word with its tag per line, which task = "tagging" reads',
            "use a table, lines or directories",
        )
    return chain(sample, lines)


def _read_whole(file: File, reading: Reading, seen: FileSummary, *, empty: bool) -> Iterator[tuple[int, Cell, tuple[str, ...]]]:
    """One that is empty is refused, unless it may be."""
    text = read_file_text(file.path, reading.encoding, seen) if empty else "".join(read_text(file.path, reading.encoding, seen))
    yield 1, file.label or "", (text.removesuffix("\n"),)


def _read(file: File, reading: Reading, seen: FileSummary, *, empty: bool) -> Iterator[tuple[int, Cell, tuple[str, ...]]]:
    if file.is_whole:
        return _read_whole(file, reading, seen, empty=empty)
    if file_format(file.path) != "text":
        return _read_table(file, reading, seen)
    return _read_lines(file, reading, seen)


def _refuse_columns(file: File, reading: Reading) -> None:
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
            "drop that, or name it as the table it is",
        )


def refuse_conll(path: Path) -> None:
    """Refuse words with tags: their lines would be read as texts."""
    if is_conll(path):
        raise DataError(path, "CoNLL file, but this run reads labeled texts", "use a table, lines or directories")


def read_records(files: Sequence[File], reading: Reading, seen: FileSummary, *, skip_empty: bool = True) -> Iterator[Record]:
    """Every example of the files, in order. One without a text is left out and counted, or refused; of two texts one may be
    empty."""
    kept = 0
    for file in files:
        if file_format(file.path) == "text" or file.is_whole:
            _refuse_columns(file, reading)
            if file.label is None:
                refuse_conll(file.path)
        for line, cell, texts in _read(file, reading, seen, empty=skip_empty):
            where = file_location(file.path, line)
            labels = _labels(cell, reading, where)
            if any(text.strip() for text in texts):
                kept += 1
                yield Record(texts, labels, file.path, line)
            elif skip_empty:
                seen.skip(where)
            else:
                problem = (
                    f"has the label {preview(', '.join(labels), 40)} but no text" if labels else "has neither label nor text"
                )
                raise DataError(where, problem, "add a text or remove it")
    if not kept and seen.skipped:
        name = display_name([file.path for file in files])
        raise DataError(name, f"all {seen.skipped:,} examples are without text", "is data.text_column the right column?")
