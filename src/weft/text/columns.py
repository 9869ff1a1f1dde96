"""Rows as aligned lines for a terminal, which gives some letters two places and marks none."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Sequence
from itertools import pairwise

JOINER, PICTURE = "\u200d", "\ufe0f"  # the second asks for the picture of the letter before it


def places(text: str) -> int:
    """How many places of a terminal, or of a font whose letters are all as wide, a text takes: two for letters of Chinese,
    Japanese and Korean and most pictures, none for accents, what joins letters, and what is drawn into the one before."""
    if text.isascii():
        return len(text)
    total, last = 0, 0  # of all letters; of the last that takes a place
    for before, letter in pairwise("\0" + text):
        wide = unicodedata.east_asian_width(letter) in "WF"
        if letter == PICTURE:
            total, last = total + (last == 1), 2
        elif _joined(before, letter, wide=wide) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
            continue
        else:
            last = 2 if wide else 1
            total += last
    return total


def _joined(before: str, letter: str, *, wide: bool) -> bool:
    """Whether a letter is drawn into the one before: a vowel or an end of a Korean syllable, the colour of a skin, or what a
    joiner adds to a picture."""
    return "\u1160" <= letter <= "\u11ff" or "\U0001f3fb" <= letter <= "\U0001f3ff" or (before == JOINER and wide)


def aligned(rows: Sequence[Sequence[str]], *, left: Container[int] = (0,)) -> list[str]:
    """The rows as lines: the columns numbered in `left` flush left, the others flush right."""
    widths = [max(map(places, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        gaps = [" " * (width - places(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [cell + gap if at in left else gap + cell for at, (cell, gap) in enumerate(zip(row, gaps, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
