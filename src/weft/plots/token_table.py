"""A table of words as a self-contained SVG: what was guessed at each place, by whom, the darker the surer.

Shapes: T rows, S columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

HIGH, FONT, MARGIN, GAP, LINE = 26, 12, 12, 6, 18
NARROW, WIDEST = 26, 120  # of a column
WIDE = 660  # of a band of columns
LETTER = 7.4  # about how wide one is
LONGEST = 15  # letters in a cell; what is longer is cut, and stands whole in the tooltip
STEPS, SWATCH, BAR = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0), 30, 10
# opacity over paper, and a frame where a guess was right: as in heatmap.py
STYLE = (
    ".weft-guesses{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-guesses .paper{fill:#fff}"
    ".weft-guesses .ink{fill:#2f7ebc}"
    ".weft-guesses text{fill:#111}"
    ".weft-guesses .name{text-anchor:end}"
    ".weft-guesses .right{stroke:#1b7a34;stroke-width:2;fill:none}"
    ".weft-guesses .grid{stroke:#888;stroke-opacity:.3;fill:none}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-guesses .paper{fill:#15181d}"
    ".weft-guesses .ink{fill:#3d8fd6}"
    ".weft-guesses text{fill:#eee}"
    ".weft-guesses .right{stroke:#69db7c}"
    "}"
)


class TokenGuess(NamedTuple):
    text: str
    probability: float  # from 0 to 1: how dark
    tooltip: str  # for the pointer
    is_correct: bool = False


def _shown(text: str) -> str:
    found = visible(text.replace("\n", "⏎"))
    return found if len(found) <= LONGEST else found[: LONGEST - 1] + "…"


def _cell(one: TokenGuess, x: float, y: float, width: float) -> str:
    box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{HIGH}"'
    frame = (
        f'<rect class="right" x="{x + 1.5:g}" y="{y + 1.5:g}" width="{width - 3:g}" height="{HIGH - 3}"/>'
        if one.is_correct
        else ""
    )
    return (
        f'<g><title>{html(one.tooltip)}</title><rect class="ink" {box} opacity="{0.8 * math.sqrt(one.probability):.3f}"/>'
        f'<rect class="grid" {box}/>{frame}'
        f'<text x="{x + width / 2:g}" y="{y + HIGH / 2:g}" dy=".35em">{html(_shown(one.text))}</text></g>'
    )


def _legend(x: float, y: float, note: str) -> str:
    parts = []
    for at, step in enumerate(STEPS):
        box = f'x="{x + at * SWATCH:g}" y="{y:g}" width="{SWATCH}" height="{BAR}"'
        parts.append(f'<rect class="ink" {box} opacity="{0.8 * math.sqrt(step):.3f}"/><rect class="grid" {box}/>')
        parts.append(
            f'<text x="{x + (at + 0.5) * SWATCH:g}" y="{y + BAR + 12:g}" text-anchor="middle" font-size="10">{step:g}</text>'
        )
    return "".join([*parts, f'<text x="{x:g}" y="{y + BAR + 28:g}" font-size="11">{html(note)}</text>'])


def _bands(columns: Sequence[str], config: Sequence[Sequence[TokenGuess]], room: float) -> list[tuple[list[int], list[float]]]:
    """The columns in bands no wider than there is room: their numbers, and how wide each is."""
    bands: list[tuple[list[int], list[float]]] = []
    for at, column in enumerate(columns):
        texts = [column, *(row[at].text for row in config)]
        width = min(WIDEST, max(NARROW, 10 + LETTER * max(len(_shown(text)) for text in texts)))
        if not bands or sum(bands[-1][1]) + width > room:
            bands.append(([], []))
        bands[-1][0].append(at)
        bands[-1][1].append(width)
    return bands


def _check(config: Sequence[Sequence[TokenGuess]], rows: Sequence[str], columns: Sequence[str]) -> None:
    if not config or not columns or len(config) != len(rows) or any(len(row) != len(columns) for row in config):
        sizes = sorted({len(row) for row in config})
        raise UsageError(
            "guesses", f"there are {len(config)} rows of {sizes} cells, but {len(rows)} row names and {len(columns)} of columns"
        )


def token_table(
    config: Sequence[Sequence[TokenGuess]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    corner: str = "",
    note: str = "probability",
) -> str:
    """Guesses (T, S) as an SVG, wide tables in several bands; the first row is the uppermost, `corner` is what columns are."""
    _check(config, rows, columns)
    left = MARGIN + LETTER * max(len(text) for text in [*rows, corner]) + GAP
    bands = _bands(columns, config, WIDE - left)
    parts, top, right = list[str](), float(MARGIN), left + max(len(STEPS) * SWATCH, 6.4 * len(note))
    for chosen, widths in bands:
        top += HIGH
        edges = [left + sum(widths[:at]) for at in range(len(widths) + 1)]
        for at, (column, width) in enumerate(zip(chosen, widths, strict=True)):
            middle = edges[at] + width / 2
            parts.append(f'<text x="{middle:g}" y="{top - 9:g}" font-weight="bold">{html(_shown(columns[column]))}</text>')
            parts += [_cell(row[column], edges[at], top + number * HIGH, width) for number, row in enumerate(config)]
        names = [(name, top + (at + 0.5) * HIGH) for at, name in enumerate(rows)]
        parts.append(f'<text class="name" x="{left - GAP:g}" y="{top - 9:g}" font-style="italic">{html(corner)}</text>')
        parts += [f'<text class="name" x="{left - GAP:g}" y="{y:g}" dy=".35em">{html(name)}</text>' for name, y in names]
        top, right = top + len(rows) * HIGH + 2 * GAP, max(right, edges[-1])
    wide, high = right + MARGIN, top + BAR + 34 + MARGIN
    size = f'width="{wide:g}" height="{high:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-guesses" role="img" aria-label="{html(corner or note)}"'
            f' {size} viewBox="0 0 {wide:g} {high:g}">',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>',
            f'<g text-anchor="middle">{"".join(parts)}</g>',
            _legend(left, top, note),
            "</svg>\n",
        ]
    )
