"""A heat map as a self-contained SVG with tokens on its axes, such as attention weights.

Shapes: T rows, S columns.
"""

from __future__ import annotations

import math
import unicodedata
import zlib
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.png import draw_bitmap

MIN_CELL_SIZE, MAX_CELL_SIZE, SIDE = 18, 40, 720  # of a cell; preferred longer side of the grid
FONT, LINE, MARGIN, GAP = 12, 16, 12, 6
MAX_CHARS = 24  # of a label; the tooltips of the cells have the whole text
MIN_TITLE_WIDTH = 360  # a title wraps at the width of the drawing, but not below this
MAX_LABELED = 10_000  # cells; larger maps are one bitmap without tooltips
STEPS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # shown in the legend
SWATCH, BAR = 30, 10  # width and height of each
SLOPE = math.sqrt(0.5)  # of labels tilted by 45 degrees
SHADE = "weight; shade: its square root"  # below the legend
JOINERS = "\u200c\u200d"  # invisible, but they change the shape of their neighbors
# Opacity over paper: a color scheme needs only one color per sign, and print is light. No CSS variables, which programs other
# than browsers do not know. Every rule is under our class, because a page may contain other drawings.
STYLE = (
    ".weft-heatmap{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-heatmap .paper{fill:#fff}"
    ".weft-heatmap .ink{fill:#08306b}"
    ".weft-heatmap .grid{stroke:#888;stroke-opacity:.3;fill:none}"
    ".weft-heatmap text{fill:#222}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-heatmap .paper{fill:#15181d}"
    ".weft-heatmap .ink{fill:#9ecbff}"
    ".weft-heatmap text{fill:#ddd}"
    "}"
)


def _escape(char: str) -> str:
    """A character, or its escape if it is invisible or not allowed in XML."""
    category = unicodedata.category(char)
    is_hidden = category in ("Cc", "Cs", "Cn", "Zs", "Zl", "Zp") or (category == "Cf" and char not in JOINERS)
    return char.encode("unicode_escape").decode("ascii") if is_hidden else char


def visible(token: str) -> str:
    """A token as it is drawn: spaces become symbols, invisible characters escapes, a lone accent gets a dotted circle."""
    if not token:
        return "ε"
    if all(char in JOINERS for char in token):
        return token.encode("unicode_escape").decode("ascii")
    carrier = "◌" if unicodedata.category(token[0]).startswith("M") else ""
    return carrier + "".join("␣" if char == " " else _escape(char) for char in token)


def _characters(text: str) -> list[str]:
    """The characters of a text, each with the marks and joiners that follow it."""
    clusters: list[str] = []
    for char in text:
        if clusters and (unicodedata.category(char).startswith("M") or char in JOINERS or clusters[-1][-1] == "\u200d"):
            clusters[-1] += char
        else:
            clusters.append(char)
    return clusters


def _short(text: str) -> str:
    chars = _characters(text)
    return text if len(chars) <= MAX_CHARS else "".join(chars[: MAX_CHARS - 1]) + "…"


def _em_width(char: str) -> float:
    if unicodedata.east_asian_width(char) in "WF" or char in "MW@%…":
        return 1.0
    return 0.8 if char.isupper() or char in "mw" else 0.62


def _width(text: str) -> float:
    """An upper estimate of the drawn width; no font is available to measure it."""
    return FONT * sum(_em_width(cluster[0]) for cluster in _characters(text))


def _wrap(title: str, width: float) -> list[str]:
    """The title, wrapped at spaces."""
    lines: list[str] = []
    for word in title.split():
        if lines and _width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def number(value: float) -> str:
    """A coordinate or an opacity with as few digits as needed."""
    return f"{value:.3f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


class Frame:
    """The layout: title, labels, grid and the legend below it."""

    def __init__(self, rows: Sequence[str], columns: Sequence[str], title: str, axes: tuple[str, str] | None) -> None:
        self.rows, self.columns = ([_short(visible(token)) for token in axis] for axis in (rows, columns))
        self.axes = axes
        axis_line = LINE if axes else 0  # for the axis names: above the column labels, left of the row labels
        self.cell = min(MAX_CELL_SIZE, max(MIN_CELL_SIZE, SIDE // max(len(rows), len(columns))))
        widths = [_width(label) for label in self.columns]
        self.tilted = max(widths) > self.cell - 4
        self.left = math.ceil(MARGIN + axis_line + max(_width(label) for label in self.rows) + GAP)
        # a tilted label extends to the right of its column
        label_ends = [(x + 0.5) * self.cell + (width + FONT) * SLOPE for x, width in enumerate(widths)] if self.tilted else []
        right = self.left + max(len(columns) * self.cell, len(STEPS) * SWATCH, *label_ends)
        self.title = _wrap(title, max(MIN_TITLE_WIDTH, right - MARGIN))
        label_height = (max(widths) + FONT) * SLOPE if self.tilted else FONT
        title_height = len(self.title) * LINE + GAP if self.title else 0
        self.labels_top = MARGIN + title_height
        self.top = math.ceil(self.labels_top + axis_line + label_height + GAP)
        self.bottom = self.top + len(rows) * self.cell
        self.width = math.ceil(max([right, *(MARGIN + _width(line) for line in self.title)]) + MARGIN)
        self.height = self.bottom + 2 * GAP + BAR + 2 * LINE + MARGIN


def draw_title(frame: Frame) -> str:
    lines = (f'<tspan x="{MARGIN}" dy="{LINE}">{escape(line)}</tspan>' for line in frame.title)
    return f'<text y="{MARGIN - 4}" font-weight="bold">{"".join(lines)}</text>' if frame.title else ""


def _fit_end(name: str, width: float) -> str:
    """The end of a name that fits into `width`: paths differ at their end."""
    chars = _characters(name)
    while len(chars) > 1 and _width("".join(chars)) > width:
        chars = ["…", *chars[2:]]
    return "".join(chars)


def draw_axes(frame: Frame) -> str:
    """The centered names of both axes; the name of the rows is rotated."""
    if frame.axes is None:
        return ""
    x_center, y_center = frame.left + len(frame.columns) * frame.cell / 2, (frame.top + frame.bottom) / 2
    widths = [2 * min(center, size - center) - MARGIN for center, size in ((y_center, frame.height), (x_center, frame.width))]
    names = [html(_fit_end(name, width)) for name, width in zip(frame.axes, widths, strict=True)]
    return (
        f'<g text-anchor="middle" font-style="italic">'
        f'<text x="{number(x_center)}" y="{frame.labels_top + FONT}">{names[1]}</text>'
        f'<text transform="translate({MARGIN + FONT} {number(y_center)}) rotate(-90)">{names[0]}</text></g>'
    )


def draw_labels(frame: Frame) -> str:
    half = frame.cell / 2
    rows = "".join(
        f'<text x="{frame.left - GAP}" y="{number(frame.top + y * frame.cell + half)}" dy=".35em">{escape(label)}</text>'
        for y, label in enumerate(frame.rows)
    )
    positions = (
        f"translate({number(frame.left + x * frame.cell + half)} {frame.top - GAP})" for x in range(len(frame.columns))
    )
    rotation, anchor = (" rotate(-45)", "start") if frame.tilted else ("", "middle")
    columns = "".join(
        f'<text transform="{position}{rotation}">{escape(label)}</text>'
        for position, label in zip(positions, frame.columns, strict=True)
    )
    return f'<g text-anchor="end">{rows}</g><g text-anchor="{anchor}">{columns}</g>'


def _cells(weights: np.ndarray, shades: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Squares of size 1, each with tokens and weight in its tooltip."""
    row_labels, column_labels = ([escape(visible(token)) for token in axis] for axis in (rows, columns))
    lines = []
    if weights.size > MAX_LABELED:
        key = f"map-{zlib.crc32(shades.tobytes()):x}"  # unique within a page
        return draw_bitmap(shades, key, f'x="0" y="0" width="{len(columns)}" height="{len(rows)}"')
    for y, row in enumerate(row_labels):
        cells = zip(column_labels, weights[y].tolist(), shades[y].tolist(), strict=True)
        squares = "".join(
            f'<path d="M{x} 0h1v1h-1z" opacity="{number(shade)}"><title>{row}\n{column}\n{number(weight)}</title></path>'
            for x, (column, weight, shade) in enumerate(cells)
        )
        lines.append(f'<g transform="translate(0 {y})">{squares}</g>')
    return "\n".join(lines)


def draw_grid(frame: Frame) -> str:
    width, height = len(frame.columns) * frame.cell, len(frame.rows) * frame.cell
    horizontal = "".join(f"M{frame.left} {frame.top + y * frame.cell}h{width}" for y in range(len(frame.rows) + 1))
    vertical = "".join(f"M{frame.left + x * frame.cell} {frame.top}v{height}" for x in range(len(frame.columns) + 1))
    return f'<path class="grid" shape-rendering="crispEdges" d="{horizontal}{vertical}"/>'


class Swatch(NamedTuple):
    """A step of a legend."""

    fill: str  # a CSS class of the drawing
    opacity: float
    text: str


class Legend(NamedTuple):
    """The legend below a map."""

    swatches: Sequence[Swatch]
    name: str
    width: int = SWATCH  # of each


def draw_legend(frame: Frame, legend: Legend) -> str:
    """The swatches side by side below the grid, and the name of the quantity."""
    y, width = frame.bottom + 2 * GAP, legend.width
    parts = []
    for index, swatch in enumerate(legend.swatches):
        x = frame.left + index * width
        box = f'x="{x}" y="{y}" width="{width}" height="{BAR}"'
        parts.append(f'<rect class="{swatch.fill}" {box} opacity="{number(swatch.opacity)}"/><rect class="grid" {box}/>')
        parts.append(f'<text x="{x + width // 2}" y="{y + BAR + FONT}">{swatch.text}</text>')
    parts.append(f'<text x="{frame.left}" y="{y + BAR + FONT + LINE}" text-anchor="start">{html(legend.name)}</text>')
    return f'<g text-anchor="middle" font-size="10">{"".join(parts)}</g>'


def draw_map(frame: Frame, cells: str, legend: Legend, *, look: tuple[str, str], label: str, overlay: str = "") -> str:
    """The drawing around cells of size 1. `look` is its CSS class and style, `label` its name if it has no title, and `overlay`
    is drawn over the cells."""
    css_class, style = look
    width = max(frame.width, frame.left + len(legend.swatches) * legend.width + GAP)
    size = f'width="{width}" height="{frame.height}"'
    attributes = f'role="img" aria-label="{escape(" ".join(frame.title) or label)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{css_class}" {attributes} {size} '
            f'viewBox="0 0 {width} {frame.height}">',
            f"<style>{style}</style>",
            f'<rect class="paper" {size} rx="6"/>{draw_title(frame)}{draw_axes(frame)}{draw_labels(frame)}',
            f'<g class="ink" transform="translate({frame.left} {frame.top}) scale({frame.cell})">',
            cells,
            f"</g>{draw_grid(frame)}{overlay}{draw_legend(frame, legend)}",
            "</svg>\n",
        ]
    )


def heading(title: str) -> str:
    """A title with invisible characters escaped."""
    return "".join(char if char.isspace() else _escape(char) for char in title)


def check_shape(function: str, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Raise unless there is one value per row and column."""
    if values.shape != (len(rows), len(columns)):
        raise UsageError(function, f"shape {values.shape} does not match {len(rows)} rows and {len(columns)} columns")
    if not values.size:
        raise UsageError(function, f"nothing to draw: the shape is {values.shape}")


def _check_weights(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    check_shape("heatmap", weights, rows, columns)
    invalid = weights[~(np.isfinite(weights) & (weights >= 0))]
    if len(invalid):
        raise UsageError("heatmap", f"weights must be finite and at least 0, got {invalid[0]:g}")


def heatmap(
    weights: np.ndarray, *, rows: Sequence[str], columns: Sequence[str], title: str = "", axes: tuple[str, str] | None = None
) -> str:
    """Weights (T, S) as an SVG; `axes` are the names of rows and columns.

    Larger weights are darker, by the square root, so that small ones are visible. The scale ends at 1 (or at the maximum, if
    that is larger), so that maps are comparable.
    """
    _check_weights(weights, rows, columns)
    maximum = max(1.0, float(weights.max()))
    frame = Frame(rows, columns, heading(title), axes)
    swatches = [Swatch("ink", step**0.5, f"{step * maximum:.2g}") for step in STEPS]
    cells = _cells(weights, (weights / maximum) ** 0.5, rows, columns)
    return draw_map(frame, cells, Legend(swatches, SHADE), look=("weft-heatmap", STYLE), label="heat map")
