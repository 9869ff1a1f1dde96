"""Reads tagged sentences from files: one word per line, and a blank line after each sentence.

    CoNLL-U  ten tab-separated columns; comments (#), multiword tokens (1-2) and empty nodes (1.1) are skipped
    columns  two or more columns, the same number in every line, separated by tabs or else by spaces; -DOCSTART- is skipped

A file is CoNLL-U if its name ends in .conllu, or if the line of its first word has ten columns and starts with an ID. Words and
tags are not normalized: in tab-separated files, a word may contain spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from weft.data.columns import Name
from weft.data.table_rows import file_location, kind_of
from weft.errors import DataError
from weft.text.compression import COMPRESSED_SUFFIXES
from weft.text.reading import FileSummary, preview, quote, read_lines

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"
ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_BLANKS = re.compile("[ \t]+")


@dataclass(frozen=True)
class Reading:
    """The options of tagged files. None: the default column of the format."""

    encoding: str = "utf-8"
    word: Name | None = None
    tag: Name | None = None


class Sentence(NamedTuple):
    words: tuple[str, ...]
    tags: tuple[str, ...]
    path: Path
    line: int  # line of the first word, from 1


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
    values = ", ".join(repr(preview(cell, 40)) for cell in cells)
    return DataError(file_location(path, line), f"expected {expected}, got {len(cells)}: {values}")


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


def _columns(path: Path, reading: Reading, *, count: int, conllu: bool) -> tuple[int, int]:
    """The indices of the word and the tag column, from 0."""
    defaults: tuple[Name, Name] = ("form", "upos") if conllu else (1, count)
    word = column(path, "word_column", reading.word or defaults[0], count=count, conllu=conllu)
    tag = column(path, "tag_column", reading.tag or defaults[1], count=count, conllu=conllu)
    if word == tag:
        raise DataError(path, f"word and tag are both column {word + 1}", "set data.word_column and data.tag_column")
    return word, tag


def _word(path: Path, line: int, text: str, tag: str) -> Word:
    if not text or not tag:
        missing, present = ("tag", f"word {quote(text, 40)}") if text else ("word", f"tag {quote(tag, 40)}")
        raise DataError(file_location(path, line), f"{present} has no {missing}")
    return Word(text, tag, line)


def _read_conllu(path: Path, reading: Reading, summary: FileSummary) -> Words:
    word, tag = _columns(path, reading, count=len(CONLLU), conllu=True)
    summary.notes.append(f"{path.name}: CoNLL-U, words are {CONLLU[word].upper()}, tags {CONLLU[tag].upper()}")
    next_id = 1
    for number, line in enumerate(read_lines(path, reading.encoding, summary), 1):
        if _is_blank(line):
            next_id = 1
            yield None
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != len(CONLLU):
            raise wrong_column_count(path, number, cells, f"{len(CONLLU)} tab-separated columns (CoNLL-U)")
        match = ID.fullmatch(cells[0])
        if match is None or (not match[1] and int(cells[0]) != next_id):
            problem = f"expected ID {next_id}, got {preview(cells[0], 40)!r}"
            raise DataError(file_location(path, number), problem, "is a blank line missing?")
        if match[1]:
            continue  # a multiword token or an empty node
        next_id += 1
        yield _word(path, number, cells[word], cells[tag])


def _read_columns(path: Path, reading: Reading, summary: FileSummary) -> Words:
    has_tabs, count, word, tag = False, 0, 0, 0  # set by the line of the first word
    for number, line in enumerate(read_lines(path, reading.encoding, summary), 1):
        if _is_blank(line):
            yield None
            continue
        if line == DOCUMENT or line.startswith((f"{DOCUMENT}\t", f"{DOCUMENT} ")):
            continue
        has_tabs = has_tabs if count else "\t" in line
        cells = line.split("\t") if has_tabs else _BLANKS.split(line.strip(" \t"))
        if not count:
            if len(cells) < 2:
                raise wrong_column_count(path, number, cells, "at least 2 columns, a word and its tag")
            count = len(cells)
            word, tag = _columns(path, reading, count=count, conllu=False)
            note = f"words are in column {word + 1}, tags in column {tag + 1} of {count}"
            summary.notes.append(f"{path.name}: {note}, separated by {'tabs' if has_tabs else 'spaces'}")
        if len(cells) != count:
            raise wrong_column_count(path, number, cells, f"{count} {'tab-separated ' if has_tabs else ''}columns")
        yield _word(path, number, cells[word], cells[tag])


def _sentence(path: Path, words: list[Word]) -> Sentence:
    return Sentence(tuple(word.text for word in words), tuple(word.tag for word in words), path, words[0].line)


def _read(path: Path, reading: Reading, summary: FileSummary) -> Iterator[Sentence]:
    """The sentences of one file."""
    words: list[Word] = []
    read = _read_conllu if is_conllu(path, reading.encoding) else _read_columns
    for word in read(path, reading, summary):
        if word is not None:
            words.append(word)
        elif words:
            yield _sentence(path, words)
            words = []
    if words:
        yield _sentence(path, words)


def refuse_table(path: Path) -> None:
    """Raise for tables other than .tsv, which may contain columns of words and tags."""
    if kind_of(path) not in ("text", "tsv"):
        raise DataError(path, "is a table", "a tagger reads CoNLL-U, words and tags in columns, or one sentence per line")


def read_sentences(paths: Sequence[Path], reading: Reading, summary: FileSummary) -> Iterator[Sentence]:
    """The sentences of all files, in order."""
    for path in paths:
        refuse_table(path)
        is_empty = True
        for sentence in _read(path, reading, summary):
            is_empty = False
            yield sentence
        if is_empty:
            raise DataError(path, "file has no tagged words", "use a file with one word and its tag per line")
