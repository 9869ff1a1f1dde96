"""Tagged sentences passed from Python, written to a file of columns: one word and its tag per line."""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.data.memory import MemoryFormat, Row
from weft.errors import DataError, suggest
from weft.tasks.tagging.data import TaggedDataConfig
from weft.tasks.tagging.files import CONLLU, DOCUMENT

WORDS, TAGS = "words", "tags"


def _cells(value: Any, name: str, location: str) -> list[str]:
    cells = value.split() if isinstance(value, str) else value
    if not isinstance(cells, list) or not all(isinstance(cell, str) for cell in cells):
        raise DataError(location, f"expected a list of strings or a string with spaces as {name!r}")
    for cell in cells:
        if not cell.strip() or "\t" in cell or "\n" in cell or cell == DOCUMENT:
            raise DataError(location, f"{name!r} contains {cell!r}, which a column cannot contain", "change or remove it")
    return cells


def _columns(config: TaggedDataConfig) -> tuple[int, int, int]:
    """Indices of the word and the tag column, from 0, and the number of columns. Column names are those of CoNLL-U."""
    if isinstance(config.word_column, str) or isinstance(config.tag_column, str):
        names = [config.word_column or "form", config.tag_column or "upos"]
        for name in names:
            if isinstance(name, str) and name not in CONLLU:
                raise DataError("data", f"unknown column {name!r}", suggest(name, CONLLU))
        word, tag = (CONLLU.index(name) if isinstance(name, str) else name - 1 for name in names)
        return word, tag, len(CONLLU)
    word = 0 if config.word_column is None else config.word_column - 1
    tag = max(word + 1, 1) if config.tag_column is None else config.tag_column - 1
    return word, tag, max(word, tag) + 1


def _write(columns: tuple[int, int, int], row: Row, location: str) -> str:
    """A sentence as text: one line per word, and a blank line."""
    word_column, tag_column, count = columns
    words, tags = (_cells(row[name], name, location) for name in (WORDS, TAGS))
    if not words or len(words) != len(tags):
        raise DataError(location, f"{len(words)} words and {len(tags)} tags", "give each word one tag")
    lines = []
    for number, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
        cells = ["_"] * count
        if count == len(CONLLU):
            cells[0] = str(number)
        cells[word_column], cells[tag_column] = word, tag
        lines.append("\t".join(cells) + "\n")
    return "".join(lines) + "\n"


def in_memory(config: TaggedDataConfig) -> MemoryFormat:
    """Examples are the words of a sentence and their tags, lists of strings."""
    columns = _columns(config)
    suffix = ".conllu" if columns[2] == len(CONLLU) else ".conll"
    return MemoryFormat((WORDS, TAGS), suffix=suffix, write=partial(_write, columns))
