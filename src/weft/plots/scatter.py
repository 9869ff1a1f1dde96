"""Points in a plane as a self-contained SVG: vectors of words, each word in a colour and a shape of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible
from weft.plots.lines import DARK, GAP, LIGHT, LINE, MARGIN, SHAPES, coordinate, drawn_title

SIDE = 440  # the plot is square: a direction is as long across as up
LONGEST = 20  # letters of a name
SWATCH = 18


def _scheme(colours: Sequence[str]) -> str:
    return "".join(f".weft-scatter .s{at} path{{fill:{colour}}}" for at, colour in enumerate(colours))


# every rule under our class, no variables: as in heatmap.py
STYLE = (
    ".weft-scatter{font:13px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-scatter .paper{fill:#fff}"
    ".weft-scatter text{fill:#222}"
    ".weft-scatter .axis{stroke:#888;stroke-opacity:.4;fill:none}"
    ".weft-scatter .frame{stroke:#888;fill:none}"
    ".weft-scatter .dots path{fill-opacity:.7}"
    f"{_scheme(LIGHT)}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-scatter .paper{fill:#15181d}"
    ".weft-scatter text{fill:#ddd}"
    f"{_scheme(DARK)}"
    "}"
)


class Points(NamedTuple):
    """The points of one name."""

    name: str
    places: np.ndarray  # (N, 2)
    notes: Sequence[str]  # N, for the pointer


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _legend(groups: Sequence[Points], top: float) -> tuple[str, float]:
    """A mark and a name of each group, in as many columns as fit, and how high that is."""
    wide = SWATCH + 8.2 * max(len(_short(visible(one.name))) for one in groups) + 14
    columns = max(1, min(len(groups), int((SIDE + 2 * MARGIN) // wide)))
    rows = -(-len(groups) // columns)
    parts = [
        f'<g class="s{at % len(LIGHT)}" transform="translate({coordinate(MARGIN + 6 + at // rows * wide)} '
        f'{coordinate(top + at % rows * LINE + LINE / 2)})"><path d="{SHAPES[at % len(SHAPES)]}"/>'
        f'<text x="{SWATCH - 6}" dy=".35em">{html(_short(visible(one.name)))}</text></g>'
        for at, one in enumerate(groups)
    ]
    return "".join(parts), rows * LINE


def _dots(groups: Sequence[Points], place: np.ndarray, scale: float, top: float) -> str:
    """Every point where it lies; `place` is the middle of all."""
    middle = np.array([MARGIN + LINE + SIDE / 2, top + SIDE / 2])
    parts = []
    for at, one in enumerate(groups):
        marks = []
        for point, note in zip(one.places, one.notes, strict=True):
            x, y = middle + (point - place) * scale * np.array([1, -1])
            told = html(f"{visible(one.name)}\n{note}")
            moved = f"translate({coordinate(x)} {coordinate(y)})"
            marks.append(f'<path transform="{moved}" d="{SHAPES[at % len(SHAPES)]}"><title>{told}</title></path>')
        parts.append(f'<g class="s{at % len(LIGHT)}">{"".join(marks)}</g>')
    return f'<g class="dots">{"".join(parts)}</g>'


def _frame(axes: tuple[str, str], top: float) -> str:
    left, right, bottom = MARGIN + LINE, MARGIN + LINE + SIDE, top + SIDE
    across, up = map(html, axes)
    return (
        f'<path class="frame" shape-rendering="crispEdges" d="M{left} {coordinate(top)}V{coordinate(bottom)}H{right}"/>'
        f'<g text-anchor="middle" font-style="italic">'
        f'<text x="{left + SIDE / 2}" y="{coordinate(bottom + LINE)}">{across}</text>'
        f'<text transform="translate({MARGIN + 8} {coordinate(top + SIDE / 2)}) rotate(-90)">{up}</text></g>'
    )


def scatter(groups: Sequence[Points], *, axes: tuple[str, str], title: str = "") -> str:
    """The points as an SVG, both directions on one scale; `axes` are the names of across and up."""
    if not groups or not all(len(one.places) for one in groups):
        raise UsageError("scatter", "there is nothing to draw: every group needs a point")
    every = np.concatenate([one.places for one in groups])
    if not np.isfinite(every).all():
        raise UsageError("scatter", "places must be finite")
    heading, lines_high = drawn_title(title, SIDE // 8)
    top = MARGIN + lines_high + GAP
    low, high = every.min(axis=0), every.max(axis=0)
    scale = (SIDE - 4 * GAP) / (float((high - low).max()) or 1.0)
    below = top + SIDE + 1.6 * LINE
    legend, height = _legend(groups, below)
    wide, high_all = SIDE + 2 * MARGIN + LINE, coordinate(below + height + MARGIN)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-scatter" role="img" aria-label="{html(title or "map")}" '
            f'width="{wide}" height="{high_all}" viewBox="0 0 {wide} {high_all}">',
            f'<style>{STYLE}</style><rect class="paper" width="{wide}" height="{high_all}" rx="6"/>',
            heading,
            _frame(axes, top) + _dots(groups, (low + high) / 2, scale, top),
            legend,
            "</svg>\n",
        ]
    )
