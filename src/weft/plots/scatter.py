"""A scatter plot as a self-contained SVG, such as vectors of words; each group has its own color and marker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible
from weft.plots.lines import DARK, GAP, LIGHT, LINE, MARGIN, SHAPES, coordinate, draw_title

SIDE = 440  # the plot is square: both axes have the same scale
MAX_CHARS = 20  # of a name
SWATCH = 18


def _scheme(colors: Sequence[str]) -> str:
    return "".join(f".weft-scatter .s{index} path{{fill:{color}}}" for index, color in enumerate(colors))


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
    """The points of one group."""

    name: str
    positions: np.ndarray  # (N, 2)
    notes: Sequence[str]  # N, for tooltips


def _short(name: str) -> str:
    return name if len(name) <= MAX_CHARS else name[: MAX_CHARS - 1] + "…"


def _legend(groups: Sequence[Points], top: float) -> tuple[str, float]:
    """The legend in as many columns as fit, and its height."""
    width = SWATCH + 8.2 * max(len(_short(visible(group.name))) for group in groups) + 14
    columns = max(1, min(len(groups), int((SIDE + 2 * MARGIN) // width)))
    rows = -(-len(groups) // columns)
    parts = [
        f'<g class="s{index % len(LIGHT)}" transform="translate({coordinate(MARGIN + 6 + index // rows * width)} '
        f'{coordinate(top + index % rows * LINE + LINE / 2)})"><path d="{SHAPES[index % len(SHAPES)]}"/>'
        f'<text x="{SWATCH - 6}" dy=".35em">{html(_short(visible(group.name)))}</text></g>'
        for index, group in enumerate(groups)
    ]
    return "".join(parts), rows * LINE


def _draw_points(groups: Sequence[Points], center: np.ndarray, scale: float, top: float) -> str:
    """All points; `center` is the point in the middle of the plot."""
    plot_center = np.array([MARGIN + LINE + SIDE / 2, top + SIDE / 2])
    parts = []
    for index, group in enumerate(groups):
        marks = []
        for point, note in zip(group.positions, group.notes, strict=True):
            x, y = plot_center + (point - center) * scale * np.array([1, -1])
            tooltip = html(f"{visible(group.name)}\n{note}")
            position = f"translate({coordinate(x)} {coordinate(y)})"
            marks.append(f'<path transform="{position}" d="{SHAPES[index % len(SHAPES)]}"><title>{tooltip}</title></path>')
        parts.append(f'<g class="s{index % len(LIGHT)}">{"".join(marks)}</g>')
    return f'<g class="dots">{"".join(parts)}</g>'


def _frame(axes: tuple[str, str], top: float) -> str:
    left, right, bottom = MARGIN + LINE, MARGIN + LINE + SIDE, top + SIDE
    x_name, y_name = map(html, axes)
    return (
        f'<path class="frame" shape-rendering="crispEdges" d="M{left} {coordinate(top)}V{coordinate(bottom)}H{right}"/>'
        f'<g text-anchor="middle" font-style="italic">'
        f'<text x="{left + SIDE / 2}" y="{coordinate(bottom + LINE)}">{x_name}</text>'
        f'<text transform="translate({MARGIN + 8} {coordinate(top + SIDE / 2)}) rotate(-90)">{y_name}</text></g>'
    )


def scatter(groups: Sequence[Points], *, axes: tuple[str, str], title: str = "") -> str:
    """The points as an SVG, with the same scale on both axes; `axes` are their names."""
    if not groups or not all(len(group.positions) for group in groups):
        raise UsageError("scatter", "nothing to draw: every group needs a point")
    points = np.concatenate([group.positions for group in groups])
    if not np.isfinite(points).all():
        raise UsageError("scatter", "positions must be finite")
    heading, title_height = draw_title(title, SIDE // 8)
    top = MARGIN + title_height + GAP
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (SIDE - 4 * GAP) / (float((high - low).max()) or 1.0)
    legend_top = top + SIDE + 1.6 * LINE
    legend, legend_height = _legend(groups, legend_top)
    width, total_height = SIDE + 2 * MARGIN + LINE, coordinate(legend_top + legend_height + MARGIN)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-scatter" role="img" aria-label="{html(title or "map")}" '
            f'width="{width}" height="{total_height}" viewBox="0 0 {width} {total_height}">',
            f'<style>{STYLE}</style><rect class="paper" width="{width}" height="{total_height}" rx="6"/>',
            heading,
            _frame(axes, top) + _draw_points(groups, (low + high) / 2, scale, top),
            legend,
            "</svg>\n",
        ]
    )
