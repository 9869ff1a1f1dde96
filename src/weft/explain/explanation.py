"""The result of an explanation: data, figures and text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from weft.plots.formatting import on_one_line
from weft.plots.heatmap import visible
from weft.text import table_layout
from weft.text.reading import pluralize


class TokenSpan(NamedTuple):
    """A token and its character offsets in the input text; 0 and 0 if the token is not part of the text."""

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
    lines: Sequence[str] = ()  # a summary for the terminal
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

    def __str__(self) -> str:
        return "\n".join([self.title, *self.lines])

    def __repr__(self) -> str:
        return f"Explanation(view={self.view!r}, title={self.title!r}, {pluralize(len(self.figures), 'figure')})"

    def _repr_html_(self) -> str:
        """The figures as HTML, for notebooks."""
        figures = [f"<figure>{figure.svg}</figure>" for figure in self.figures]  # their titles are in the pictures
        guide = f"<p>{escape(self.guide)}</p>" if self.guide else ""
        return f"<h4>{escape(self.title)}</h4>{guide}{''.join(figures)}"


TRUNCATED = "warning: the text was truncated to the maximum length of the model"


def list_tokens(spans: Sequence[TokenSpan]) -> list[dict[str, Any]]:
    """The tokens as JSON data."""
    return [span._asdict() for span in spans]


def align_columns(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)) -> list[str]:
    """Rows of cells as aligned lines for a terminal. The columns in `left` are left-aligned, the others right-aligned. Control
    characters are escaped, so that each row is one line."""
    return table_layout.align([[on_one_line(cell) for cell in row] for row in rows], left=left)


def unique_labels(spans: Sequence[TokenSpan]) -> list[str]:
    """The tokens as labels for a terminal. Repeated tokens have their position: a(3), a(7)."""
    counts = Counter(span.text for span in spans)
    return [visible(span.text) + (f"({i})" if counts[span.text] > 1 else "") for i, span in enumerate(spans, 1)]
