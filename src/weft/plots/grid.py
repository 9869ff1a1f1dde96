"""Small multiples of heat maps as one self-contained SVG: a row a layer, a column a head, to find the one worth a closer look.

Shapes: L rows of maps, H maps in a row, T rows and S columns in a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import FONT, GAP, LINE, MARGIN
from weft.plots.png import inked

SMALLEST, LARGEST = 72, 150  # the longer side of a map
ACROSS = 8  # maps beside each other; more of a row go on in the next line
LETTER = 7  # width of a letter of a label, about
# opacity over paper, as in heatmap.py
STYLE = (
    ".weft-grid{font:12px system-ui,sans-serif}"
    ".weft-grid .paper{fill:#fff}"
    ".weft-grid .ink{fill:#08306b}"
    ".weft-grid .frame{stroke:#888;stroke-opacity:.45;fill:none}"
    ".weft-grid text{fill:#222}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-grid .paper{fill:#15181d}"
    ".weft-grid .ink{fill:#9ecbff}"
    ".weft-grid text{fill:#ddd}"
    "}"
)


class Map(NamedTuple):
    name: str  # over it
    weights: np.ndarray  # (T, S), from 0 to 1
    on_note: str = ""  # for the pointer


def _size(rows: Sequence[tuple[str, Sequence[Map]]]) -> tuple[int, int]:
    """Width and height that every map has room in."""
    shapes = [one.weights.shape for _, maps in rows for one in maps]
    high, wide = max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    side = min(LARGEST, max(SMALLEST, 6 * max(high, wide)))
    scale = side / max(high, wide)
    return max(12, round(wide * scale)), max(12, round(high * scale))


def _drawn(one: Map, key: str, place: tuple[int, int], size: tuple[int, int]) -> str:
    (x, y), (wide, high) = place, size
    box = f'x="{x}" y="{y}" width="{wide}" height="{high}"'
    return (
        f'<g class="map" data-key="{html(key)}"><title>{html(" ".join(filter(None, (one.name, one.on_note))))}</title>'
        f'<text x="{x}" y="{y - 4}">{html(one.name)}</text><rect class="paper" {box}/>'
        f'{inked(np.sqrt(one.weights.clip(0, 1)), key, box)}<rect class="frame" {box}/></g>'
    )


def grid(rows: Sequence[tuple[str, Sequence[Map]]], *, key: str, title: str = "") -> str:
    """Maps in named rows as an SVG; `key` tells this drawing from others in a page, of map h in row l it is `key-l-h`."""
    if not rows or not all(maps for _, maps in rows):
        raise UsageError("grid", "there is nothing to draw: every row needs a map")
    size = _size(rows)
    left = MARGIN + LETTER * max(len(name) for name, _ in rows) + GAP
    across = min(ACROSS, max(len(maps) for _, maps in rows))
    y = MARGIN + (LINE + GAP if title else 0)
    parts = []
    for number, (name, maps) in enumerate(rows):
        for at, one in enumerate(maps):
            if at % ACROSS == 0:
                y += LINE + (size[1] + GAP if at else 0)
            x = left + at % ACROSS * (size[0] + 2 * GAP)
            parts.append(_drawn(one, f"{key}-{number}-{at}", (x, y), size))
            if at == 0:
                parts.append(f'<text x="{MARGIN}" y="{y + FONT}">{html(name)}</text>')
        y += size[1] + GAP
    width = max(left + across * (size[0] + 2 * GAP), MARGIN + LETTER * len(title)) + MARGIN
    view = f'width="{width}" height="{y + MARGIN}" viewBox="0 0 {width} {y + MARGIN}"'
    head = f'<text x="{MARGIN}" y="{MARGIN + FONT}" font-weight="bold">{html(title)}</text>' if title else ""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-grid" role="img" aria-label="{html(title or key)}" {view}>',
            f'<style>{STYLE}</style><rect class="paper" width="{width}" height="{y + MARGIN}" rx="6"/>{head}',
            *parts,
            "</svg>\n",
        ]
    )
