"""A heat map of positive and negative numbers as a self-contained SVG, such as attributions.

Shapes: T rows, S columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from weft.errors import UsageError
from weft.plots.heatmap import Frame, Legend, Swatch, check_shape, draw_map, heading, number, visible

STEPS = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0)  # in the legend, as fractions of the maximum
SWATCH = 34
MAX_OPACITY = 0.85
# a color-blind safe pair; opacity over paper, as in heatmap.py
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
    """The opacity for a fraction of the maximum: its square root, so that small values are visible."""
    return float(MAX_OPACITY * min(1.0, abs(fraction)) ** 0.5)


def _cells(values: np.ndarray, maximum: float, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Squares of size 1; zeros are left out."""
    row_labels, column_labels = ([escape(visible(token)) for token in axis] for axis in (rows, columns))
    lines = []
    for y, row in enumerate(row_labels):
        squares = "".join(
            f'<path class="{_sign(value)}" d="M{x} 0h1v1h-1z" opacity="{number(_shade(value / maximum))}">'
            f"<title>{row}\n{column}\n{value:+.4f}</title></path>"
            for x, (column, value) in enumerate(zip(column_labels, values[y].tolist(), strict=True))
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
    """Values (T, S) as an SVG: orange above 0, blue below, opacity by the square root. `name` is the quantity; `maximum` is the
    value with full opacity. Default: the largest absolute value."""
    check_shape("diverging_heatmap", values, rows, columns)
    if not np.isfinite(values).all():
        raise UsageError("diverging_heatmap", "values must be finite")
    limit = maximum or float(np.abs(values).max()) or 1.0
    frame = Frame(rows, columns, heading(title), axes)
    swatches = [Swatch(_sign(step), _shade(step), f"{step * limit:+.2g}" if step else "0") for step in STEPS]
    legend = Legend(swatches, f"{name}; shade: its square root", SWATCH)
    return draw_map(frame, _cells(values, limit, rows, columns), legend, look=("weft-signed", STYLE), label=name)
