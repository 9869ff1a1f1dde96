"""Helpers for summaries of data files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from weft.text.reading import preview

MAX_LISTED = 10  # labels or notes in a summary


@dataclass
class ColumnSize:
    """Amount of text in a column."""

    empty: int = 0
    characters: int = 0
    bytes: int = 0

    def add(self, text: str) -> None:
        self.empty += not text
        self.characters += len(text)
        self.bytes += len(text) if text.isascii() else len(text.encode())


def listed(counts: Counter[str]) -> str:
    """'a (10), b (5) and 3 more', most frequent first; without counts if every name occurs once."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    numbers = [f" ({counts[name]:,})" if counts[names[0]] > 1 else "" for name in names]
    return ", ".join(preview(name, 40) + number for name, number in zip(names[:MAX_LISTED], numbers, strict=False)) + more
