"""Tagged sentences from files, one word a line and a blank line after each sentence. All of it comes through the gate.

    CoNLL-U  ten columns with tabs between; # lines are comments, multiword tokens (1-2) and empty nodes (1.1) are skipped
    columns  any number of them, with tabs or else with blanks between, as many in every line; -DOCSTART- lines are skipped

A file is CoNLL-U by its name, .conllu, or if its first word has ten columns, of which the first is a number as those have.
Words and tags are taken as they are: with tabs between, a word may have blanks inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from weft.data.columns import Name
from weft.data.table_rows import file_format, file_location
from weft.errors import DataError
from weft.text.compression import COMPRESSED_SUFFIXES
from weft.text.reading import FileSummary, preview, quote, read_lines

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"
ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_BLANKS = re.compile("[ \t]+")


@dataclass(frozen=True)
class Reading:
    """How tagged files are read: the options of their table. None: as the format has it."""

    encoding: str = "utf-8"
    word: Name | None = None
    tag: Name | None = None


class Sentence(NamedTuple):
    words: tuple[str, ...]
    tags: tuple[str, ...]
    path: Path
    line: int  # of its first word, from 1


class Word(NamedTuple):
    text: str
    tag: str
    line: int


Words = Iterator[Word | None]  # None ends a sentence


def _is_blank(line: str) -> bool:
    return not line.strip(" \t")


def is_conllu(path: Path, encoding: str) -> bool:
    """Whether the file is CoNLL-U, by its name or by its first word."""
    name = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
    if name.suffix.lower() == ".conllu":
        return True
    first = next((line for line in read_lines(path, encoding) if not _is_blank(line) and not line.startswith("#")), "")
    cells = first.split("\t")
    return len(cells) == len(CONLLU) and ID.fullmatch(cells[0]) is not None


def wrong_column_count(path: Path, line: int, cells: list[str], expected: str) -> DataError:
    shown = ", ".join(repr(preview(cell, 40)) for cell in cells)
    return DataError(file_location(path, line), f"expected {expected}, got {len(cells)}: {shown}")


def column(path: Path, option: str, name: Name, *, count: int, conllu: bool) -> int:
    """The index of a column, from 0."""
    if isinstance(name, int) and name > count:
        raise DataError(path, f"no column {name}: the file has {count} columns", f"set data.{option}")
    if isinstance(name, int):
        return name - 1
    if not conllu:
        raise DataError(path, f"no column {name!r}: only CoNLL-U columns have names", f"set data.{option} to a 1-based index")
    if name not in CONLLU:
        raise DataError(path, f"no column {name!r}", f"set data.{option} to one of: {', '.join(CONLLU)}")
    return CONLLU.index(name)


def _places(path: Path, reading: Reading, *, count: int, conllu: bool) -> tuple[int, int]:
    """The columns of words and of tags, from 0."""
    usual: tuple[Name, Name] = ("form", "upos") if conllu else (1, count)
    word = column(path, "word_column", reading.word or usual[0], count=count, conllu=conllu)
    tag = column(path, "tag_column", reading.tag or usual[1], count=count, conllu=conllu)
    if word == tag:
        raise DataError(path, f"word and tag are both column {word + 1}", "set data.word_column and data.tag_column")
    return word, tag


def _checked(path: Path, line: int, text: str, tag: str) -> Word:
    if not text or not tag:
        missing, present = ("tag", f"word {quote(text, 40)}") if text else ("word", f"tag {quote(tag, 40)}")
        raise DataError(file_location(path, line), f"{present} has no {missing}")
    return Word(text, tag, line)


def _read_conllu(path: Path, reading: Reading, seen: FileSummary) -> Words:
    word, tag = _places(path, reading, count=len(CONLLU), conllu=True)
    seen.notes.append(f"{path.name}: CoNLL-U, words are {CONLLU[word].upper()}, tags {CONLLU[tag].upper()}")
    due = 1
    for number, line in enumerate(read_lines(path, reading.encoding, seen), 1):
        if _is_blank(line):
            due = 1
            yield None
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != len(CONLLU):
            raise wrong_column_count(path, number, cells, f"{len(CONLLU)} tab-separated columns (CoNLL-U)")
        words = ID.fullmatch(cells[0])
        if words is None or (not words[1] and int(cells[0]) != due):
            shown_id = preview(cells[0], 40)
            raise DataError(file_location(path, number), f"expected ID {due}, got {shown_id!r}", "is a blank line missing?")
        if words[1]:
            continue  # a multiword token or an empty node
        due += 1
        yield _checked(path, number, cells[word], cells[tag])


def _read_columns(path: Path, reading: Reading, seen: FileSummary) -> Words:
    tabs, first, count, word, tag = False, 0, 0, 0, 0  # as the first word's line has them
    for number, line in enumerate(read_lines(path, reading.encoding, seen), 1):
        if _is_blank(line):
            yield None
            continue
        if line == DOCUMENT or line.startswith((f"{DOCUMENT}\t", f"{DOCUMENT} ")):
            continue
        tabs = tabs if first else "\t" in line
        cells = line.split("\t") if tabs else _BLANKS.split(line.strip(" \t"))
        if not first:
            if len(cells) < 2:
                raise wrong_column_count(path, number, cells, "at least 2 columns, a word and its tag")
            first, count = number, len(cells)
            word, tag = _places(path, reading, count=count, conllu=False)
            notes = f"words are in column {word + 1}, tags in column {tag + 1} of {count}"
            seen.notes.append(f"{path.name}: {notes}, with {'tabs' if tabs else 'blanks'} between")
        if len(cells) != count:
            raise wrong_column_count(path, number, cells, f"{count} {'tab-separated ' if tabs else ''}columns")
        yield _checked(path, number, cells[word], cells[tag])


def _read(path: Path, reading: Reading, seen: FileSummary) -> Iterator[Sentence]:
    """The sentences of one file."""
    words: list[Word] = []
    read = _read_conllu if is_conllu(path, reading.encoding) else _read_columns
    for word in read(path, reading, seen):
        if word is not None:
            words.append(word)
        elif words:
            yield _sentence(path, words)
            words = []
    if words:
        yield _sentence(path, words)


def _sentence(path: Path, words: list[Word]) -> Sentence:
    return Sentence(tuple(word.text for word in words), tuple(word.tag for word in words), path, words[0].line)


def refuse_table(path: Path) -> None:
    if file_format(path) not in ("text", "tsv"):
        raise DataError(path, "is a table", "a tagger reads CoNLL-U, words and tags in columns, or one sentence per line")


def read_sentences(paths: Sequence[Path], reading: Reading, seen: FileSummary) -> Iterator[Sentence]:
    """Every sentence of the files, in order; comments and empty nodes are skipped."""
    for path in paths:
        refuse_table(path)
        sentences = False
        for sentence in _read(path, reading, seen):
            sentences = True
            yield sentence
        if not sentences:
            raise DataError(path, "file has no tagged words", "use a file with one word and its tag per line")
