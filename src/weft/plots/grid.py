"""Small multiples of heat maps as a self-contained SVG, such as a row per layer and a column per head.

Shapes: L rows of maps, H maps in a row, T rows and S columns in a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import FONT, GAP, LINE, MARGIN
from weft.plots.png import draw_bitmap

MIN_SIDE, MAX_SIDE = 72, 150  # the longer side of a map
PER_LINE = 8  # maps in a line; longer rows wrap
CHAR_WIDTH = 7  # of a label, approximately
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
    name: str  # above the map
    weights: np.ndarray  # (T, S), from 0 to 1
    note: str = ""  # in the tooltip


def _size(rows: Sequence[tuple[str, Sequence[Map]]]) -> tuple[int, int]:
    """The width and height of all maps, for the largest one."""
    shapes = [heat_map.weights.shape for _, maps in rows for heat_map in maps]
    height, width = max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    side = min(MAX_SIDE, max(MIN_SIDE, 6 * max(height, width)))
    scale = side / max(height, width)
    return max(12, round(width * scale)), max(12, round(height * scale))


def _draw(heat_map: Map, key: str, position: tuple[int, int], size: tuple[int, int]) -> str:
    (x, y), (width, height) = position, size
    box = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    return (
        f'<g class="map" data-key="{html(key)}"><title>{html(" ".join(filter(None, (heat_map.name, heat_map.note))))}</title>'
        f'<text x="{x}" y="{y - 4}">{html(heat_map.name)}</text><rect class="paper" {box}/>'
        f'{draw_bitmap(np.sqrt(heat_map.weights.clip(0, 1)), key, box)}<rect class="frame" {box}/></g>'
    )


def grid(rows: Sequence[tuple[str, Sequence[Map]]], *, key: str, title: str = "") -> str:
    """Maps in named rows as an SVG. `key` must be unique in a page; map h of row l gets the key `key-l-h`."""
    if not rows or not all(maps for _, maps in rows):
        raise UsageError("grid", "nothing to draw: every row needs a map")
    size = _size(rows)
    left = MARGIN + CHAR_WIDTH * max(len(name) for name, _ in rows) + GAP
    per_line = min(PER_LINE, max(len(maps) for _, maps in rows))
    y = MARGIN + (LINE + GAP if title else 0)
    parts = []
    for row, (name, maps) in enumerate(rows):
        for column, heat_map in enumerate(maps):
            if column % PER_LINE == 0:
                y += LINE + (size[1] + GAP if column else 0)
            x = left + column % PER_LINE * (size[0] + 2 * GAP)
            parts.append(_draw(heat_map, f"{key}-{row}-{column}", (x, y), size))
            if column == 0:
                parts.append(f'<text x="{MARGIN}" y="{y + FONT}">{html(name)}</text>')
        y += size[1] + GAP
    width = max(left + per_line * (size[0] + 2 * GAP), MARGIN + CHAR_WIDTH * len(title)) + MARGIN
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
