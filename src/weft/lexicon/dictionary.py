"""Dictionaries: pairs of translations in a file, two words per line. A word may have several translations."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import DataError
from weft.text.reading import quote, read_lines
from weft.vectors.word_vectors import WordVectors


class Pair(NamedTuple):
    source: str
    target: str
    line: int


class Dictionary(NamedTuple):
    """The pairs of a file, in order."""

    path: Path
    pairs: list[Pair]


def read_dictionary(path: Path) -> Dictionary:
    """Read two words per line, separated by a tab, or else by a space."""
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        if len(cells) != 2 or not all(cells):
            raise DataError(f"{path}:{number}", f"expected two words, got {quote(line, 40)}", "separate them by a tab")
        pairs.append(Pair(cells[0], cells[1], number))
    return Dictionary(path, pairs)


class CoveredPairs(NamedTuple):
    """Rows of the pairs of which both words have a vector, and counts of all."""

    source: NDArray[np.int64]  # (n,)
    target: NDArray[np.int64]  # (n,)
    total: int


def covered_pairs(dictionary: Dictionary, source: WordVectors, target: WordVectors) -> CoveredPairs:
    """The pairs with vectors; an error without any."""
    rows = [(source.find(pair.source), target.find(pair.target)) for pair in dictionary.pairs]
    covered = [(x, y) for x, y in rows if x is not None and y is not None]
    if not covered:
        first = dictionary.pairs[0]
        missing = source.name if source.find(first.source) is None else target.name
        word = first.source if missing == source.name else first.target
        problem = f"no pair has vectors for both words: {quote(word)} is not in {missing}"
        raise DataError(f"{dictionary.path}:{first.line}", problem, "is the order source, target? are the words lowercase?")
    x, y = np.array(covered, np.int64).T
    return CoveredPairs(x, y, len(dictionary.pairs))


def identical_pairs(source: WordVectors, target: WordVectors) -> CoveredPairs:
    """Words that are spelled alike in both languages; an error without any."""
    pairs = [(row, target.index[word]) for word, row in source.index.items() if word in target.index]
    if not pairs:
        raise DataError(target.name, f"no word is spelled as in {source.name}", "use --dictionary FILE with pairs of words")
    x, y = np.array(sorted(pairs), np.int64).T
    return CoveredPairs(x, y, len(pairs))


def gold_translations(dictionary: Dictionary, target: WordVectors) -> dict[str, tuple[list[str], list[int]]]:
    """For each source word all its translations, and the rows of translations with a vector."""
    gold: dict[str, tuple[list[str], list[int]]] = {}
    for pair in dictionary.pairs:
        words, rows = gold.setdefault(pair.source, ([], []))
        words.append(pair.target)
        if (row := target.find(pair.target)) is not None and row not in rows:
            rows.append(row)
    return gold
