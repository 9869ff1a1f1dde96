"""Rows as aligned lines for a terminal, which gives some letters two places and marks none."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Sequence


def places(text: str) -> int:
    """How many places of a terminal, or of a font whose letters are all as wide, a text takes: two for letters of Chinese,
    Japanese and Korean and most pictures, none for accents and what joins letters."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(letter) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def aligned(rows: Sequence[Sequence[str]], *, left: Container[int] = (0,)) -> list[str]:
    """The rows as lines: the columns numbered in `left` flush left, the others flush right."""
    widths = [max(map(places, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        gaps = [" " * (width - places(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [cell + gap if at in left else gap + cell for at, (cell, gap) in enumerate(zip(row, gaps, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
