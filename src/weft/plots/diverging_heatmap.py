"""A heat map of numbers above and below zero as a self-contained SVG: what spoke for each output, and what against it.

Shapes: T rows, S columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from weft.errors import UsageError
from weft.plots.heatmap import Frame, Legend, Swatch, check_shape, draw_map, heading, number, visible

STEPS = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0)  # shown in the legend, times the largest
SWATCH = 34
STRONGEST = 0.85  # opacity
# two colours that are told apart by those who see no red or no green; opacity over paper, as in heatmap.py
STYLE = (
    ".weft-signed{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-signed .paper{fill:#fff}"
    ".weft-signed .up{fill:#d9480f}"
    ".weft-signed .down{fill:#1864ab}"
    ".weft-signed .grid{stroke:#888;stroke-opacity:.3;fill:none}"
    ".weft-signed text{fill:#222}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-signed .paper{fill:#15181d}"
    ".weft-signed .up{fill:#ff8a3d}"
    ".weft-signed .down{fill:#4dabf7}"
    ".weft-signed text{fill:#ddd}"
    "}"
)


def _sign(value: float) -> str:
    return "down" if value < 0 else "up"


def _shade(fraction: float) -> float:
    """The opacity of a share of the largest: by the square root, so that small ones show."""
    return float(STRONGEST * min(1.0, abs(fraction)) ** 0.5)


def _cells(values: np.ndarray, maximum: float, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Squares of size 1; a zero is none."""
    down, across = ([escape(visible(token)) for token in axis] for axis in (rows, columns))
    lines = []
    for y, row in enumerate(down):
        squares = "".join(
            f'<path class="{_sign(value)}" d="M{x} 0h1v1h-1z" opacity="{number(_shade(value / maximum))}">'
            f"<title>{row}\n{column}\n{value:+.4f}</title></path>"
            for x, (column, value) in enumerate(zip(across, values[y].tolist(), strict=True))
            if value
        )
        lines.append(f'<g transform="translate(0 {y})">{squares}</g>')
    return "\n".join(lines)


def diverging_heatmap(
    values: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    name: str,
    title: str = "",
    axes: tuple[str, str] | None = None,
    maximum: float | None = None,
) -> str:
    """Values (T, S) as an SVG, orange above 0 and blue below, the stronger the larger, by the square root; `name` says what
    they are. The strongest colour is at `largest`, which is that of the values unless given."""
    check_shape("signed map: values", values, rows, columns)
    if not np.isfinite(values).all():
        raise UsageError("signed map", "values must be finite")
    limit = maximum or float(np.abs(values).max()) or 1.0
    frame = Frame(rows, columns, heading(title), axes)
    swatches = [Swatch(_sign(step), _shade(step), f"{step * limit:+.2g}" if step else "0") for step in STEPS]
    legend = Legend(swatches, f"{name}; shade: its square root", SWATCH)
    return draw_map(frame, _cells(values, limit, rows, columns), legend, look=("weft-signed", STYLE), label=name)
