"""What an explanation is: numbers first, with the tokens they belong to, then pictures of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from weft.plots.formatting import on_one_line
from weft.plots.heatmap import visible
from weft.text import table_layout as columns


class TokenSpan(NamedTuple):
    """A token as it is shown, and where it stands in the text that was given, in characters; 0 to 0 if it is not of it."""

    text: str
    start: int
    end: int


class Figure(NamedTuple):
    caption: str
    svg: str


class Explanation(NamedTuple):
    view: str
    title: str
    data: dict[str, Any]  # what JSON can hold: {"tokens": [{"text", "start", "stop"}], ...}
    figures: list[Figure]
    lines: Sequence[str] = ()  # the same in a few words, for a terminal
    guide: str = ""  # how to read the pictures

    def _repr_html_(self) -> str:
        """The pictures, for notebooks."""
        figures = [f"<figure>{one.svg}<figcaption>{escape(one.caption)}</figcaption></figure>" for one in self.figures]
        guide = f"<p>{escape(self.guide)}</p>" if self.guide else ""
        return f"<h4>{escape(self.title)}</h4>{guide}{''.join(figures)}"


TRUNCATED = "the text is longer than the model reads, and was cut"


def list_tokens(pieces: Sequence[TokenSpan]) -> list[dict[str, Any]]:
    """The pieces, for `data`."""
    return [piece._asdict() for piece in pieces]


def align_columns(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)) -> list[str]:
    """Rows of cells as lines for a terminal: the columns numbered in `left` flush left, the others flush right; whatever a text
    holds, a row stays a line and steers no terminal."""
    return columns.align([[on_one_line(cell) for cell in row] for row in rows], left=left)


def unique_labels(pieces: Sequence[TokenSpan]) -> list[str]:
    """The pieces as a terminal shows them: of those that look alike, each with the number of its place, a@3, a@7."""
    counts = Counter(piece.text for piece in pieces)
    return [visible(piece.text) + (f"@{at}" if counts[piece.text] > 1 else "") for at, piece in enumerate(pieces, 1)]
