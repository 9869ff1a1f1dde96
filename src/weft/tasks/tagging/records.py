"""Input files in CoNLL-U or columns for prediction, and output in the same format: only the tag column changes; comments,
multiword tokens and other columns are preserved."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from weft.data.input_records import Entry, Form, InputFile, OpenedRecords, Values
from weft.tasks.tagging.data import TaggedDataConfig
from weft.tasks.tagging.files import CONLLU, DOCUMENT, ID, Reading, column, refuse_table, wrong_column_count
from weft.text.compression import COMPRESSED_SUFFIXES
from weft.text.reading import RawLine

NO_TAG = "_"  # as in CoNLL-U
SAMPLE_LINES = 200  # by which the format of a file is detected
COLUMN_SUFFIXES = (".conllu", ".conll", ".conll03", ".iob", ".iob2", ".bio", ".tsv")
_CELL = re.compile("[^ \t]+")


def _is_blank(line: str) -> bool:
    return not line.strip(" \t")


@dataclass(frozen=True)
class TagForm:
    """A file of columns, with one word per line."""

    conllu: bool
    tabs: bool  # columns are separated by tabs, else by spaces
    count: int  # number of columns
    word: int  # index of the word column, from 0
    tag: int  # index of the tag column; equals `count` if tags are added as a new column
    is_plain: bool = False

    def head(self, names: Sequence[str]) -> str:
        return ""

    def tail(self) -> str:
        return ""

    def matches(self, other: Form) -> bool:
        return isinstance(other, TagForm) and self.conllu == other.conllu

    def cells(self, line: str) -> list[str] | None:
        """The columns of a line with a word; None for other lines."""
        if _is_blank(line) or line == DOCUMENT or line.startswith((f"{DOCUMENT}\t", f"{DOCUMENT} ")):
            return None
        cells = line.split("\t") if self.tabs else _CELL.findall(line)
        if line.startswith("#") and len(cells) != self.count:
            return None
        match = ID.fullmatch(cells[0]) if self.conllu else None
        return None if match is not None and match[1] else cells  # a multiword token or an empty node

    def _with_tag(self, line: str, tag: str) -> str:
        """The line with its tag replaced or added."""
        if self.tag >= self.count:
            separator = "\t" if self.tabs else (re.findall("[ \t]+", line.strip(" \t")) or [" "])[-1]
            return f"{line}{separator}{tag}"
        if self.tabs:
            cells = line.split("\t")
            cells[self.tag] = tag
            return "\t".join(cells)
        cell = list(_CELL.finditer(line))[self.tag]
        return line[: cell.start()] + tag + line[cell.end() :]

    def row(self, entry: Entry, values: Values) -> str:
        tags = list(values["prediction"] or [NO_TAG] * len(entry.texts))
        # without tabs, spaces inside a tag would separate columns
        next_tags = iter(tags if self.tabs else ["_".join(tag.split()) for tag in tags])
        is_valid = bool(entry.texts) or entry.fault is None
        rows = []
        for raw_line in entry.raw.split("\n"):
            line = raw_line.removesuffix("\r")
            if is_valid and self.cells(line):
                line = self._with_tag(line, next(next_tags, NO_TAG))
            rows.append(line + "\r" * raw_line.endswith("\r"))
        return "\n".join(rows) + "\n"

    def _blocks(self, lines: Iterator[RawLine]) -> Iterator[tuple[int, list[RawLine]]]:
        """Blocks of lines that end with the blank lines after a sentence, with the number of their first line."""
        block: list[RawLine] = []
        start, is_complete = 1, False
        for number, line in enumerate(lines, 1):
            if is_complete and not _is_blank(line.text):
                yield start, block
                block, start, is_complete = [], number, False
            is_complete = is_complete or (_is_blank(line.text) and any(self.cells(previous.text) for previous in block))
            block.append(line)
        if block:
            yield start, block

    def entries(self, path: Path, lines: Iterator[RawLine]) -> Iterator[Entry]:
        """One entry per sentence, with the comments before it and the blank lines after it. Lines after the last sentence
        belong to its entry."""
        start, pending = 1, list[RawLine]()
        for number, block in self._blocks(lines):
            if pending and any(self.cells(line.text) for line in block):
                yield self._entry(path, start, pending)
                start, pending = number, []
            pending += block
        if pending:
            yield self._entry(path, start, pending)

    def _entry(self, path: Path, start: int, block: Sequence[RawLine]) -> Entry:
        rows = [(number, cells) for number, line in enumerate(block, start) if (cells := self.cells(line.text)) is not None]
        location = f"{path}:{rows[0][0] if rows else start}"
        raw = "\n".join(line.start + line.text + line.end.removesuffix("\n") for line in block)
        for number, cells in rows:
            if len(cells) != self.count:
                expected = f"{self.count} {'tab-separated ' if self.tabs else ''}columns"
                return Entry(None, (), "", raw, str(wrong_column_count(path, number, cells, expected)))
            if not cells[self.word]:
                return Entry(None, (), "", raw, f"{path}:{number}: word is missing")
        words = tuple(cells[self.word] for _, cells in rows)
        return Entry(" ".join(words), words, location, raw)


def _sample(lines: Iterator[str]) -> list[str]:
    """The first lines with a word."""
    words = (line for line in lines if not _is_blank(line) and not line.startswith(("# ", DOCUMENT)) and line != "#")
    return list(islice(words, SAMPLE_LINES))


def _are_tags(cells: Sequence[str], labels: Collection[str]) -> bool:
    """Whether at least half of the cells are tags of the run."""
    return 2 * sum(cell in labels for cell in cells) >= len(cells)


def _detect_form(path: Path, sample: Sequence[str], reading: Reading, labels: Collection[str]) -> TagForm | None:
    """The format of a file, by its name and its first lines; None if it has no columns."""
    name = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
    first = sample[0].split("\t")
    if name.suffix.lower() == ".conllu" or (len(first) == len(CONLLU) and ID.fullmatch(first[0])):
        word = column(path, "word_column", reading.word or "form", count=len(CONLLU), conllu=True)
        tag = column(path, "tag_column", reading.tag or "upos", count=len(CONLLU), conllu=True)
        return TagForm(conllu=True, tabs=True, count=len(CONLLU), word=word, tag=tag)
    tabs = "\t" in sample[0]
    rows = [line.split("\t") if tabs else _CELL.findall(line) for line in sample]
    count = len(rows[0])
    is_regular = all(len(row) == count for row in rows)
    tag = reading.tag - 1 if isinstance(reading.tag, int) else count - 1
    is_tagged = is_regular and count > 1 and 0 <= tag < count and _are_tags([row[tag] for row in rows], labels)
    if not is_tagged and name.suffix.lower() not in COLUMN_SUFFIXES:
        return None
    word = column(path, "word_column", reading.word or 1, count=count, conllu=False)
    has_tag_column = is_tagged or (isinstance(reading.tag, int) and tag < count)
    return TagForm(conllu=False, tabs=tabs, count=count, word=word, tag=tag if has_tag_column and tag != word else count)


def open_tagged(config: TaggedDataConfig, file: InputFile) -> OpenedRecords | None:
    """The sentences of a file of columns; None for plain text with one sentence per line."""
    path, lines = file.path, file.lines
    refuse_table(path)
    sample = _sample(lines())
    form = _detect_form(path, sample, config.reading(), file.labels) if sample else None
    if form is None:
        return None
    tag_column = CONLLU[form.tag].upper() if form.conllu else f"column {form.tag + 1}"
    verb = "added as" if form.tag >= form.count else "written to"
    note = "CoNLL-U" if form.conllu else f"words are in column {form.word + 1} of {form.count}"
    entries = form.entries(path, file.raw_lines())
    return OpenedRecords(form, entries, [f"{path.name}: {note}"], f", tags are {verb} {tag_column}")
