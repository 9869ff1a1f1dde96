"""The result of an explanation: data, figures and text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from weft.plots.formatting import on_one_line
from weft.plots.heatmap import visible
from weft.text import table_layout as columns


class TokenSpan(NamedTuple):
    """A token and its position in the input text, in characters; 0 to 0 if it is not part of it."""

    text: str
    start: int
    end: int


class Figure(NamedTuple):
    caption: str
    svg: str


class Explanation(NamedTuple):
    view: str
    title: str
    data: dict[str, Any]  # JSON: {"tokens": [{"text", "start", "end"}], ...}
    figures: list[Figure]
    lines: Sequence[str] = ()  # a short text version for a terminal
    guide: str = ""  # how to read the figures

    def save(self, path: str | Path) -> list[Path]:
        """Write a page that works offline (.html), the figures (.svg, .png: one file per figure), or the data (.json).

        Returns:
            The files that were written.
        """
        from weft.explain.saving import check_suffix, save_explanations

        path = Path(path)
        check_suffix("path", path)
        data = {"view": self.view, "title": self.title, **self.data}
        return list(save_explanations(path, [self], title=self.title, data=data))

    def _repr_html_(self) -> str:
        """The figures, for notebooks."""
        figures = [f"<figure>{one.svg}<figcaption>{escape(one.caption)}</figcaption></figure>" for one in self.figures]
        guide = f"<p>{escape(self.guide)}</p>" if self.guide else ""
        return f"<h4>{escape(self.title)}</h4>{guide}{''.join(figures)}"


TRUNCATED = "warning: the text was truncated to the maximum length of the model"


def list_tokens(pieces: Sequence[TokenSpan]) -> list[dict[str, Any]]:
    """The tokens as JSON data."""
    return [piece._asdict() for piece in pieces]


def align_columns(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)) -> list[str]:
    """Rows of cells as lines for a terminal: the columns in `left` are left-aligned, the others right-aligned; control
    characters are escaped, so that a row is one line."""
    return columns.align([[on_one_line(cell) for cell in row] for row in rows], left=left)


def unique_labels(pieces: Sequence[TokenSpan]) -> list[str]:
    """The tokens as labels for a terminal; equal ones get their position: a(3), a(7)."""
    counts = Counter(piece.text for piece in pieces)
    return [visible(piece.text) + (f"({at})" if counts[piece.text] > 1 else "") for at, piece in enumerate(pieces, 1)]
