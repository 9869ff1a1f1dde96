"""What summaries of files are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from weft.text.reading import preview

LISTED = 10  # labels that are shown, and notes


@dataclass
class ColumnSize:
    """How much text a column has."""

    empty: int = 0
    characters: int = 0
    bytes: int = 0

    def add(self, text: str) -> None:
        self.empty += not text
        self.characters += len(text)
        self.bytes += len(text) if text.isascii() else len(text.encode())


def listed(counts: Counter[str]) -> str:
    """'a 10, b 5 and 3 more', the most frequent first; 'a, b' where each occurs once."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    numbers = [f" {counts[name]:,}" if counts[names[0]] > 1 else "" for name in names]
    return ", ".join(preview(name, 40) + number for name, number in zip(names[:LISTED], numbers, strict=False)) + more
