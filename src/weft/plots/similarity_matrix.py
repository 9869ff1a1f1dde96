"""A matrix of similarities from 0 to 1 as a self-contained SVG.

The shade is proportional to the value, unlike in a heat map of attention, which emphasizes small weights; large cells contain
the number.

Shapes: T rows, S columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from weft.errors import UsageError
from weft.plots.heatmap import Frame, Legend, Swatch, check_shape, draw_map, heading, number, visible

STEPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # shown in the legend
SWATCH = 34
MIN_NUMBER_CELL = 30  # cell size from which numbers are drawn
DARK = 0.58  # value from which numbers have the color of the paper
# opacity over paper, as in heatmap.py
STYLE = (
    ".weft-matrix{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-matrix .paper{fill:#fff}"
    ".weft-matrix .ink{fill:#08306b}"
    ".weft-matrix .grid{stroke:#888;stroke-opacity:.3;fill:none}"
    ".weft-matrix text{fill:#222}"
    ".weft-matrix text.on{fill:#fff}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-matrix .paper{fill:#15181d}"
    ".weft-matrix .ink{fill:#9ecbff}"
    ".weft-matrix text{fill:#ddd}"
    ".weft-matrix text.on{fill:#15181d}"
    "}"
)


def _cells(values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Squares of size 1, each with names and number in its tooltip."""
    row_labels, column_labels = ([escape(visible(name)) for name in axis] for axis in (rows, columns))
    lines = []
    for y, row in enumerate(row_labels):
        squares = "".join(
            f'<path d="M{x} 0h1v1h-1z" opacity="{number(value)}"><title>{row}, {column}: {value:.3f}</title></path>'
            for x, (column, value) in enumerate(zip(column_labels, values[y].tolist(), strict=True))
        )
        lines.append(f'<g transform="translate(0 {y})">{squares}</g>')
    return "\n".join(lines)


def _numbers(frame: Frame, values: np.ndarray) -> str:
    """The numbers in the cells, if those are large enough; `pointer-events` keeps the tooltips below reachable."""
    if frame.cell < MIN_NUMBER_CELL:
        return ""
    half = frame.cell / 2
    parts = [
        f'<text class="{"on" if value >= DARK else "off"}" x="{number(frame.left + x * frame.cell + half)}" '
        f'y="{number(frame.top + y * frame.cell + half)}" dy=".35em">{value:.2f}</text>'
        for y, row in enumerate(values.tolist())
        for x, value in enumerate(row)
    ]
    return f'<g text-anchor="middle" font-size="11" pointer-events="none">{"".join(parts)}</g>'


def similarity_matrix(
    values: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    name: str,
    title: str = "",
    axes: tuple[str, str] | None = None,
) -> str:
    """Values (T, S) from 0 to 1 as an SVG, larger values darker; `name` is the quantity."""
    check_shape("similarity_matrix", values, rows, columns)
    if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
        raise UsageError("similarity_matrix", "values must be between 0 and 1")
    frame = Frame(rows, columns, heading(title), axes)
    legend = Legend([Swatch("ink", step, f"{step:g}") for step in STEPS], name, SWATCH)
    cells, overlay = _cells(values, rows, columns), _numbers(frame, values)
    return draw_map(frame, cells, legend, look=("weft-matrix", STYLE), label=name, overlay=overlay)
