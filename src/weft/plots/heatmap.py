"""A heat map as a self-contained SVG, with words on its axes: who attends to what.

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
from weft.plots.png import inked

SMALLEST, LARGEST, SIDE = 18, 40, 720  # sizes of a cell; the longer side of the grid, as far as they allow it
FONT, LINE, MARGIN, GAP = 12, 16, 12, 6
LONGEST = 24  # letters of a label; what is longer is cut, and stands whole in the cells' tooltips
MIN_CELL = 360  # a title is broken into lines at the width of the drawing, but not below this
MAX_LABELED = 10_000  # cells; where there are more, they are one picture, and have no words for the pointer
STEPS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # shown in the legend
SWATCH, BAR = 30, 10  # width and height of each
SLOPE = math.sqrt(0.5)  # of labels that are tilted by 45 degrees
SHADE = "weight; shade: its square root"  # under the legend, no wider than it
JOINERS = "\u200c\u200d"  # invisible, but letters around them look otherwise without them
# Opacity over paper, so that one colour a scheme is all there is to dark and light; print is light. Nothing that other
# programs than browsers don't know (no variables), and every rule under our class: a page may hold this beside other drawings.
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


def _spelt(letter: str) -> str:
    """A letter, or the escape for one that can't be seen or may not stand in XML."""
    kind = unicodedata.category(letter)
    hidden = kind in ("Cc", "Cs", "Cn", "Zs", "Zl", "Zp") or (kind == "Cf" and letter not in JOINERS)
    return letter.encode("unicode_escape").decode("ascii") if hidden else letter


def visible(token: str) -> str:
    """A token as it is drawn: spaces by a sign, what else is invisible by its escape, a lone accent on a dotted circle."""
    if not token:
        return "ε"
    if all(letter in JOINERS for letter in token):
        return token.encode("unicode_escape").decode("ascii")
    carrier = "◌" if unicodedata.category(token[0]).startswith("M") else ""
    return carrier + "".join("␣" if letter == " " else _spelt(letter) for letter in token)


def _letters(text: str) -> list[str]:
    """The text in pieces that may not be cut: a letter with the marks and joiners that follow it."""
    pieces: list[str] = []
    for letter in text:
        if pieces and (unicodedata.category(letter).startswith("M") or letter in JOINERS or pieces[-1][-1] == "\u200d"):
            pieces[-1] += letter
        else:
            pieces.append(letter)
    return pieces


def _short(text: str) -> str:
    letters = _letters(text)
    return text if len(letters) <= LONGEST else "".join(letters[: LONGEST - 1]) + "…"


def _ems(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF" or letter in "MW@%…":
        return 1.0
    return 0.8 if letter.isupper() or letter in "mw" else 0.62


def _width(text: str) -> float:
    """About how wide a text is drawn, rather more: no font is at hand to measure it."""
    return FONT * sum(_ems(piece[0]) for piece in _letters(text))


def _lines(title: str, width: float) -> list[str]:
    """The title, broken at spaces."""
    lines: list[str] = []
    for word in title.split():
        if lines and _width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def number(value: float) -> str:
    """As few digits as a coordinate or an opacity needs."""
    return f"{value:.3f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


class Frame:
    """Where things stand: the title, the labels, the grid and the legend under it."""

    def __init__(self, rows: Sequence[str], columns: Sequence[str], title: str, axes: tuple[str, str] | None) -> None:
        self.rows, self.columns = ([_short(visible(token)) for token in axis] for axis in (rows, columns))
        self.axes, named = axes, LINE if axes else 0  # a line above the columns, and one beside the rows
        self.cell = min(LARGEST, max(SMALLEST, SIDE // max(len(rows), len(columns))))
        widths = [_width(label) for label in self.columns]
        self.tilted = max(widths) > self.cell - 4
        self.left = math.ceil(MARGIN + named + max(_width(label) for label in self.rows) + GAP)
        # a tilted label reaches further to the right than its column
        reach = [(at + 0.5) * self.cell + (width + FONT) * SLOPE for at, width in enumerate(widths)] if self.tilted else []
        right = self.left + max(len(columns) * self.cell, len(STEPS) * SWATCH, *reach)
        self.title = _lines(title, max(MIN_CELL, right - MARGIN))
        above = (max(widths) + FONT) * SLOPE if self.tilted else FONT
        titled = len(self.title) * LINE + GAP if self.title else 0
        self.over = MARGIN + titled  # where what belongs to the grid begins
        self.top = math.ceil(self.over + named + above + GAP)
        self.bottom = self.top + len(rows) * self.cell
        self.width = math.ceil(max([right, *(MARGIN + _width(line) for line in self.title)]) + MARGIN)
        self.height = self.bottom + 2 * GAP + BAR + 2 * LINE + MARGIN


def draw_title(frame: Frame) -> str:
    lines = (f'<tspan x="{MARGIN}" dy="{LINE}">{escape(line)}</tspan>' for line in frame.title)
    return f'<text y="{MARGIN - 4}" font-weight="bold">{"".join(lines)}</text>' if frame.title else ""


def _end(name: str, room: float) -> str:
    """As much of a name as has room: its end, for those of folders differ there."""
    letters = _letters(name)
    while len(letters) > 1 and _width("".join(letters)) > room:
        letters = ["…", *letters[2:]]
    return "".join(letters)


def draw_axes(frame: Frame) -> str:
    """The names of the two axes, at the middle of each: of the rows from the bottom up."""
    if frame.axes is None:
        return ""
    across, down = frame.left + len(frame.columns) * frame.cell / 2, (frame.top + frame.bottom) / 2
    rooms = [2 * min(at, whole - at) - MARGIN for at, whole in ((down, frame.height), (across, frame.width))]
    names = [html(_end(name, room)) for name, room in zip(frame.axes, rooms, strict=True)]
    return (
        f'<g text-anchor="middle" font-style="italic"><text x="{number(across)}" y="{frame.over + FONT}">{names[1]}</text>'
        f'<text transform="translate({MARGIN + FONT} {number(down)}) rotate(-90)">{names[0]}</text></g>'
    )


def draw_labels(frame: Frame) -> str:
    half = frame.cell / 2
    rows = "".join(
        f'<text x="{frame.left - GAP}" y="{number(frame.top + at * frame.cell + half)}" dy=".35em">{escape(label)}</text>'
        for at, label in enumerate(frame.rows)
    )
    places = (f"translate({number(frame.left + at * frame.cell + half)} {frame.top - GAP})" for at in range(len(frame.columns)))
    turned, anchor = (" rotate(-45)", "start") if frame.tilted else ("", "middle")
    columns = "".join(
        f'<text transform="{place}{turned}">{escape(label)}</text>' for place, label in zip(places, frame.columns, strict=True)
    )
    return f'<g text-anchor="end">{rows}</g><g text-anchor="{anchor}">{columns}</g>'


def _cells(weights: np.ndarray, shades: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Squares of size 1, each with its words and its weight for the pointer."""
    down, across = ([escape(visible(token)) for token in axis] for axis in (rows, columns))
    lines = []
    if weights.size > MAX_LABELED:
        key = f"map-{zlib.crc32(shades.tobytes()):x}"  # no two drawings of a page may share it
        return inked(shades, key, f'x="0" y="0" width="{len(columns)}" height="{len(rows)}"')
    for y, row in enumerate(down):
        squares = "".join(
            f'<path d="M{x} 0h1v1h-1z" opacity="{number(shade)}"><title>{row}\n{column}\n{number(weight)}</title></path>'
            for x, (column, weight, shade) in enumerate(zip(across, weights[y].tolist(), shades[y].tolist(), strict=True))
        )
        lines.append(f'<g transform="translate(0 {y})">{squares}</g>')
    return "\n".join(lines)


def draw_grid(frame: Frame) -> str:
    wide, high = len(frame.columns) * frame.cell, len(frame.rows) * frame.cell
    across = "".join(f"M{frame.left} {frame.top + at * frame.cell}h{wide}" for at in range(len(frame.rows) + 1))
    down = "".join(f"M{frame.left + at * frame.cell} {frame.top}v{high}" for at in range(len(frame.columns) + 1))
    return f'<path class="grid" shape-rendering="crispEdges" d="{across}{down}"/>'


class Swatch(NamedTuple):
    """A step of a legend: how it is filled, and what it says."""

    fill: str  # a class of the drawing's style
    opacity: float
    text: str


class Legend(NamedTuple):
    """What stands under a map."""

    swatches: Sequence[Swatch]
    name: str
    width: int = SWATCH  # of each


def draw_legend(frame: Frame, legend: Legend) -> str:
    """The swatches side by side under the grid, and what they are of."""
    y, width = frame.bottom + 2 * GAP, legend.width
    parts = []
    for at, swatch in enumerate(legend.swatches):
        x = frame.left + at * width
        box = f'x="{x}" y="{y}" width="{width}" height="{BAR}"'
        parts.append(f'<rect class="{swatch.fill}" {box} opacity="{number(swatch.opacity)}"/><rect class="grid" {box}/>')
        parts.append(f'<text x="{x + width // 2}" y="{y + BAR + FONT}">{swatch.text}</text>')
    parts.append(f'<text x="{frame.left}" y="{y + BAR + FONT + LINE}" text-anchor="start">{html(legend.name)}</text>')
    return f'<g text-anchor="middle" font-size="10">{"".join(parts)}</g>'


def draw_map(frame: Frame, cells: str, legend: Legend, *, look: tuple[str, str], label: str, over: str = "") -> str:
    """The whole drawing around squares of size 1; `look` is its class and style, `label` what one without a title is called,
    and `over` is drawn on top of the squares."""
    kind, style = look
    width = max(frame.width, frame.left + len(legend.swatches) * legend.width + GAP)
    size = f'width="{width}" height="{frame.height}"'
    named = f'role="img" aria-label="{escape(" ".join(frame.title) or label)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" {named} {size} viewBox="0 0 {width} {frame.height}">',
            f"<style>{style}</style>",
            f'<rect class="paper" {size} rx="6"/>{draw_title(frame)}{draw_axes(frame)}{draw_labels(frame)}',
            f'<g class="ink" transform="translate({frame.left} {frame.top}) scale({frame.cell})">',
            cells,
            f"</g>{draw_grid(frame)}{over}{draw_legend(frame, legend)}",
            "</svg>\n",
        ]
    )


def heading(title: str) -> str:
    """A title as it is drawn."""
    return "".join(letter if letter.isspace() else _spelt(letter) for letter in title)


def check_shape(what: str, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse values that are not one for each row and column."""
    if values.shape != (len(rows), len(columns)):
        raise UsageError("", f"{what} have the shape {values.shape}, but there are {len(rows)} rows and {len(columns)} columns")
    if not values.size:
        raise UsageError(f"{what} have the shape {values.shape}", "there is nothing to draw")


def _check(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    check_shape("heatmap: weights", weights, rows, columns)
    wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
    if len(wrong):
        raise UsageError("heatmap", f"weights must be finite and not negative, not {wrong[0]:g}")


def heatmap(
    weights: np.ndarray, *, rows: Sequence[str], columns: Sequence[str], title: str = "", axes: tuple[str, str] | None = None
) -> str:
    """Weights (T, S) as an SVG; `axes` are the names of rows and columns.

    The darker the larger, by the square root, so that small ones show, and on a scale that ends at 1 (or at the
    largest, if that is more), so that two maps may be compared.
    """
    _check(weights, rows, columns)
    maximum = max(1.0, float(weights.max()))
    frame = Frame(rows, columns, heading(title), axes)
    swatches = [Swatch("ink", step**0.5, f"{step * maximum:.2g}") for step in STEPS]
    cells = _cells(weights, (weights / maximum) ** 0.5, rows, columns)
    return draw_map(frame, cells, Legend(swatches, SHADE), look=("weft-heatmap", STYLE), label="heat map")
