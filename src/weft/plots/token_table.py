"""A table of predicted tokens as a self-contained SVG, such as a logit lens; more probable tokens are darker.

Shapes: T rows, S columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

ROW_HEIGHT, MARGIN, GAP = 26, 12, 6
MIN_COLUMN, MAX_COLUMN = 26, 120  # width
MAX_WIDTH = 660  # of a band of columns
CHAR_WIDTH = 7.4  # approximately
MAX_CHARS = 15  # in a cell; the tooltip has the whole token
STEPS, SWATCH, BAR = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0), 30, 10
# opacity over paper, as in heatmap.py; a frame around correct predictions
STYLE = (
    ".weft-token-table{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-token-table .paper{fill:#fff}"
    ".weft-token-table .ink{fill:#2f7ebc}"
    ".weft-token-table text{fill:#111}"
    ".weft-token-table .name{text-anchor:end}"
    ".weft-token-table .correct{stroke:#1b7a34;stroke-width:2;fill:none}"
    ".weft-token-table .grid{stroke:#888;stroke-opacity:.3;fill:none}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-token-table .paper{fill:#15181d}"
    ".weft-token-table .ink{fill:#3d8fd6}"
    ".weft-token-table text{fill:#eee}"
    ".weft-token-table .correct{stroke:#69db7c}"
    "}"
)


class TokenGuess(NamedTuple):
    text: str
    probability: float
    tooltip: str
    is_correct: bool = False
    hue: int | None = None  # of the cell, in degrees; None: the color of all cells


def _label(text: str) -> str:
    label = visible(text.replace("\n", "⏎"))
    return label if len(label) <= MAX_CHARS else label[: MAX_CHARS - 1] + "…"


def _draw_cell(guess: TokenGuess, x: float, y: float, width: float) -> str:
    box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{ROW_HEIGHT}"'
    frame = (
        f'<rect class="correct" x="{x + 1.5:g}" y="{y + 1.5:g}" width="{width - 3:g}" height="{ROW_HEIGHT - 3}"/>'
        if guess.is_correct
        else ""
    )
    color = "" if guess.hue is None else f' style="fill:hsl({guess.hue} 65% 50%)"'
    opacity = f'opacity="{0.8 * math.sqrt(guess.probability):.3f}"'
    return (
        f'<g><title>{html(guess.tooltip)}</title><rect class="ink" {box} {opacity}{color}/>'
        f'<rect class="grid" {box}/>{frame}'
        f'<text x="{x + width / 2:g}" y="{y + ROW_HEIGHT / 2:g}" dy=".35em">{html(_label(guess.text))}</text></g>'
    )


def _legend(x: float, y: float, note: str) -> str:
    parts = []
    for index, step in enumerate(STEPS):
        box = f'x="{x + index * SWATCH:g}" y="{y:g}" width="{SWATCH}" height="{BAR}"'
        parts.append(f'<rect class="ink" {box} opacity="{0.8 * math.sqrt(step):.3f}"/><rect class="grid" {box}/>')
        parts.append(
            f'<text x="{x + (index + 0.5) * SWATCH:g}" y="{y + BAR + 12:g}" text-anchor="middle" font-size="10">{step:g}</text>'
        )
    return "".join([*parts, f'<text x="{x:g}" y="{y + BAR + 28:g}" font-size="11">{html(note)}</text>'])


def _bands(
    columns: Sequence[str], guesses: Sequence[Sequence[TokenGuess]], max_width: float
) -> list[tuple[list[int], list[float]]]:
    """The columns in bands of at most `max_width`: their indices and widths."""
    bands: list[tuple[list[int], list[float]]] = []
    for index, column in enumerate(columns):
        texts = [column, *(row[index].text for row in guesses)]
        width = min(MAX_COLUMN, max(MIN_COLUMN, 10 + CHAR_WIDTH * max(len(_label(text)) for text in texts)))
        if not bands or sum(bands[-1][1]) + width > max_width:
            bands.append(([], []))
        bands[-1][0].append(index)
        bands[-1][1].append(width)
    return bands


def _check(guesses: Sequence[Sequence[TokenGuess]], rows: Sequence[str], columns: Sequence[str]) -> None:
    if not guesses or not columns or len(guesses) != len(rows) or any(len(row) != len(columns) for row in guesses):
        lengths = sorted({len(row) for row in guesses})
        raise UsageError(
            "token_table",
            f"{len(guesses)} rows of {lengths} cells do not match {len(rows)} row and {len(columns)} column names",
        )


def token_table(
    guesses: Sequence[Sequence[TokenGuess]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    corner: str = "",
    note: str = "probability",
) -> str:
    """Guesses (T, S) as an SVG; wide tables are split into bands. The first row is at the top; `corner` names the columns."""
    _check(guesses, rows, columns)
    left = MARGIN + CHAR_WIDTH * max(len(text) for text in [*rows, corner]) + GAP
    bands = _bands(columns, guesses, MAX_WIDTH - left)
    parts, top, right = list[str](), float(MARGIN), left + max(len(STEPS) * SWATCH, 6.4 * len(note))
    for indices, widths in bands:
        top += ROW_HEIGHT
        edges = [left + sum(widths[:index]) for index in range(len(widths) + 1)]
        for index, (column, width) in enumerate(zip(indices, widths, strict=True)):
            middle = edges[index] + width / 2
            parts.append(f'<text x="{middle:g}" y="{top - 9:g}" font-weight="bold">{html(_label(columns[column]))}</text>')
            parts += [
                _draw_cell(row[column], edges[index], top + number * ROW_HEIGHT, width) for number, row in enumerate(guesses)
            ]
        names = [(name, top + (index + 0.5) * ROW_HEIGHT) for index, name in enumerate(rows)]
        parts.append(f'<text class="name" x="{left - GAP:g}" y="{top - 9:g}" font-style="italic">{html(corner)}</text>')
        parts += [f'<text class="name" x="{left - GAP:g}" y="{y:g}" dy=".35em">{html(name)}</text>' for name, y in names]
        top, right = top + len(rows) * ROW_HEIGHT + 2 * GAP, max(right, edges[-1])
    width, height = right + MARGIN, top + BAR + 34 + MARGIN
    size = f'width="{width:g}" height="{height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-token-table" role="img" aria-label="{html(corner or note)}"'
            f' {size} viewBox="0 0 {width:g} {height:g}">',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>',
            f'<g text-anchor="middle">{"".join(parts)}</g>',
            _legend(left, top, note),
            "</svg>\n",
        ]
    )
