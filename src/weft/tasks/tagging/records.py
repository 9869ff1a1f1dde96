"""Sentences of CoNLL-U and of columns that a tagger is used on, and the same file with its tags: comments, multiword tokens and
all other columns stay as they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from weft.data.input_records import InputFile, InputRecord, OpenedRecords, OutputFormat, Values
from weft.tasks.tagging.data import TaggedDataConfig
from weft.tasks.tagging.files import CONLLU, DOCUMENT, ID, Reading, column, refuse_table, wrong_column_count
from weft.text.compression import COMPRESSED_SUFFIXES
from weft.text.reading import RawLine

NONE = "_"  # the tag of a word that has none, as CoNLL-U writes it
SAMPLE = 200  # lines by which a file is told
NAMED = (".conllu", ".conll", ".conll03", ".iob", ".iob2", ".bio", ".tsv")
_CELL = re.compile("[^ \t]+")


def _is_blank(line: str) -> bool:
    return not line.strip(" \t")


@dataclass(frozen=True)
class TagForm:
    """Words in columns, a line each."""

    conllu: bool
    tabs: bool
    count: int  # of the columns
    word: int  # the column of the words, from 0
    tag: int  # that of the tags; one behind the last where tags are added
    is_plain: bool = False

    def head(self, names: Sequence[str]) -> str:
        return ""

    def tail(self) -> str:
        return ""

    def matches(self, other: OutputFormat) -> bool:
        return isinstance(other, TagForm) and self.conllu == other.conllu

    def cells(self, line: str) -> list[str] | None:
        """The columns of a line that has a word; None for all others."""
        if _is_blank(line) or line == DOCUMENT or line.startswith((f"{DOCUMENT}\t", f"{DOCUMENT} ")):
            return None
        cells = line.split("\t") if self.tabs else _CELL.findall(line)
        if line.startswith("#") and len(cells) != self.count:
            return None
        number = ID.fullmatch(cells[0]) if self.conllu else None
        return None if number is not None and number[1] else cells  # a multiword token, or an empty node

    def _tagged(self, line: str, tag: str) -> str:
        if self.tag >= self.count:
            separator = "\t" if self.tabs else (re.findall("[ \t]+", line.strip(" \t")) or [" "])[-1]
            return f"{line}{separator}{tag}"
        if self.tabs:
            cells = line.split("\t")
            cells[self.tag] = tag
            return "\t".join(cells)
        tagged = list(_CELL.finditer(line))[self.tag]
        return line[: tagged.start()] + tag + line[tagged.end() :]

    def row(self, entry: InputRecord, values: Values) -> str:
        tags = list(values["prediction"] or [NONE] * len(entry.texts))
        # blanks inside a tag would be columns
        said = iter(tags if self.tabs else ["_".join(tag.split()) for tag in tags])
        whole = bool(entry.texts) or entry.problem is None
        lines = [(line.removesuffix("\r"), "\r" * line.endswith("\r")) for line in entry.raw.split("\n")]
        written = [
            (self._tagged(line, next(said, NONE)) if whole and self.cells(line) else line) + before for line, before in lines
        ]
        return "\n".join(written) + "\n"

    def entries(self, path: Path, lines: Iterator[RawLine]) -> Iterator[InputRecord]:
        """The sentences, each with the comments before it and the blank lines after it; lines after the last sentence belong
        to it."""
        start, held = 1, list[RawLine]()
        for number, block in self._blocks(lines):
            if held and any(self.cells(line.text) for line in block):
                yield self._entry(path, start, held)
                start, held = number, []
            held += block
        if held:
            yield self._entry(path, start, held)

    def _blocks(self, lines: Iterator[RawLine]) -> Iterator[tuple[int, list[RawLine]]]:
        """Lines up to where a sentence begins anew, and the number of the first of them."""
        block: list[RawLine] = []
        start, ended = 1, False
        for number, line in enumerate(lines, 1):
            if ended and not _is_blank(line.text):
                yield start, block
                block, start, ended = [], number, False
            ended = ended or (_is_blank(line.text) and any(self.cells(one.text) for one in block))
            block.append(line)
        if block:
            yield start, block

    def _entry(self, path: Path, start: int, block: Sequence[RawLine]) -> InputRecord:
        rows = [(number, cells) for number, line in enumerate(block, start) if (cells := self.cells(line.text)) is not None]
        where = f"{path}:{rows[0][0] if rows else start}"
        raw = "\n".join(line.start + line.text + line.end.removesuffix("\n") for line in block)
        for number, cells in rows:
            if len(cells) != self.count:
                expected = f"{self.count} {'tab-separated ' if self.tabs else ''}columns"
                return InputRecord(None, (), "", raw, str(wrong_column_count(path, number, cells, expected)))
            if not cells[self.word]:
                return InputRecord(None, (), "", raw, f"{path}:{number}: word is missing")
        words = tuple(cells[self.word] for _, cells in rows)
        return InputRecord(" ".join(words), words, where, raw)


def _sampled(lines: Iterator[str]) -> list[str]:
    """Some lines that have a word."""
    words = (line for line in lines if not _is_blank(line) and not line.startswith(("# ", DOCUMENT)) and line != "#")
    return list(islice(words, SAMPLE))


def _knows(cells: Sequence[str], labels: Collection[str]) -> bool:
    """Whether these are tags of the run, at least as a rule."""
    return 2 * sum(cell in labels for cell in cells) >= len(cells)


def _form(path: Path, sample: Sequence[str], reading: Reading, labels: Collection[str]) -> TagForm | None:
    """The format of a file, by its name and its first lines; None if it has no columns."""
    name = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
    first = sample[0].split("\t")
    if name.suffix.lower() == ".conllu" or (len(first) == len(CONLLU) and ID.fullmatch(first[0])):
        word = column(path, "word_column", reading.word or "form", count=len(CONLLU), conllu=True)
        return TagForm(True, True, len(CONLLU), word, column(path, "tag_column", reading.tag or "upos", count=10, conllu=True))
    tabs = "\t" in sample[0]
    rows = [line.split("\t") if tabs else _CELL.findall(line) for line in sample]
    count, even = len(rows[0]), all(len(row) == len(rows[0]) for row in rows)
    index = reading.tag - 1 if isinstance(reading.tag, int) else count - 1
    tagged = even and count > 1 and 0 <= index < count and _knows([row[index] for row in rows], labels)
    if not tagged and name.suffix.lower() not in NAMED:
        return None
    word = column(path, "word_column", reading.word or 1, count=count, conllu=False)
    columns = tagged or (isinstance(reading.tag, int) and index < count)
    return TagForm(False, tabs, count, word, index if columns and index != word else count)


def open_tagged(config: TaggedDataConfig, file: InputFile) -> OpenedRecords | None:
    """The sentences of a file of columns; None for a text, a sentence a line."""
    path, lines = file.path, file.lines
    refuse_table(path)
    sample = _sampled(lines())
    form = _form(path, sample, config.reading(), file.labels) if sample else None
    if form is None:
        return None
    place = CONLLU[form.tag].upper() if form.conllu else f"column {form.tag + 1}"
    done = "added as" if form.tag >= form.count else "written to"
    kind = "CoNLL-U" if form.conllu else f"words are in column {form.word + 1} of {form.count}"
    return OpenedRecords(form, form.entries(path, file.raw_lines()), [f"{path.name}: {kind}"], f", tags are {done} {place}")
