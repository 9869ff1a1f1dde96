"""A line chart as a self-contained SVG: several series, with markers and a legend, on plain or logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

WIDE, HIGH = 540, 300  # of the plot
LEFT, RIGHT, MARGIN, GAP = 66, 24, 12, 6
FONT, LINE = 13, 19
MARKERS = 12  # of a series, at most: more would hide the line
LONGEST = 44  # letters of a name in the legend
TURNED, LETTER = 16, 7.8  # letters below a tick, and how wide one is about
SAMPLE = 34  # width of a line in the legend
SHAPES = (  # of size 8, around 0
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.6l4.4 7.8h-8.8z",
    "M0 -5l4.2 5l-4.2 5l-4.2 -5z",
    "M0 4.6l4.4 -7.8h-8.8z",
    "M-4 -1.3h2.7v-2.7h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7z",
)
LIGHT = ("#1f6fb2", "#c75a00", "#23803f", "#b8323a", "#7147ad", "#7d6310", "#0b7c82", "#b53c82")
DARK = ("#6cb2f2", "#f5a35c", "#6cc98a", "#f28b8b", "#bb9ff2", "#d3b75f", "#5cc9cc", "#f28fc6")
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _scheme(colours: Sequence[str]) -> str:
    return "".join(
        f".weft-lines .s{at} path{{stroke:{colour}}}.weft-lines .s{at} use,.weft-lines .s{at} .mark{{fill:{colour}}}"
        for at, colour in enumerate(colours)
    )


# every rule under our class, no variables: as in heatmap.py
STYLE = (
    # a chart is read as a whole: on a phone it shrinks, as far as its letters allow, even where other drawings scroll
    "svg.weft-lines{font:13px system-ui,sans-serif;max-width:100%;min-width:430px;height:auto}"
    ".weft-lines .paper{fill:#fff}"
    ".weft-lines text{fill:#222}"
    ".weft-lines .grid{stroke:#888;stroke-opacity:.3;fill:none}"
    ".weft-lines .frame{stroke:#888;fill:none}"
    ".weft-lines .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".weft-lines .mark{stroke:none!important}"
    f"{_scheme(LIGHT)}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-lines .paper{fill:#15181d}"
    ".weft-lines text{fill:#ddd}"
    f"{_scheme(DARK)}"
    "}"
)


class Series(NamedTuple):
    name: str
    x: Sequence[float]
    y: Sequence[float]  # what is not finite, or not above 0 on a logarithmic axis, leaves a gap
    group: str = ""  # series of one group have one colour and one marker
    dashed: bool = False
    labels: Sequence[str] = ()  # of the points, for the pointer


class Axis(NamedTuple):
    name: str
    log: bool = False
    names: Sequence[str] = ()  # of 0, 1, ..., where whole numbers stand for something; "" for one without a tick
    every: bool = False  # as many names as there is room for, turned where they are long; else a few

    def place(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def shows(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)


class Scale(NamedTuple):
    """From values to pixels, and where the ticks stand."""

    axis: Axis
    low: float  # these two as they are placed: exponents on a logarithmic axis
    high: float
    start: float  # pixels
    stop: float
    ticks: list[tuple[float, str]]  # placed, and what is written

    def at(self, placed: float) -> float:
        return self.start + (placed - self.low) / (self.high - self.low) * (self.stop - self.start)

    def point(self, value: float) -> float:
        return self.at(self.axis.place(value))


def _power(exponent: int) -> str:
    return "1" if exponent == 0 else f"10{str(exponent).translate(SUPERSCRIPTS)}"


def _plain_ticks(low: float, high: float, limit: int, *, whole: bool) -> list[float]:
    """Round numbers from below `low` to above `high`; whole ones, if so."""
    raw = max((high - low) / limit, 1.0 if whole else 0.0)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * size for size in (1, 2, 5, 10) if unit * size >= raw * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    count = math.ceil(high / step - 1e-9) - first
    return [(first + at) * step for at in range(count + 1)]


def _token(text: str) -> str:
    """What stands below a tick: a token with every letter of it visible, cut where it is long."""
    shown = visible(text)
    return shown if len(shown) <= TURNED else shown[: TURNED - 1] + "…"


def _ticks(axis: Axis, low: float, high: float, limit: int, *, whole: bool) -> list[tuple[float, str]]:
    if axis.names:
        named = [(float(at), _token(name) if axis.every else name) for at, name in enumerate(axis.names) if name]
        many = WIDE // FONT if axis.every else limit + 2
        return named[:: -(-len(named) // many)]
    if not axis.log:
        return [(tick, f"{tick:,.6g}") for tick in _plain_ticks(low, high, limit, whole=whole)]
    first, last = math.floor(low + 1e-9), math.ceil(high - 1e-9)
    last = max(last, first + 1)
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100) if size * limit >= last - first)
    first, last = first // step * step, -(-last // step) * step
    return [(float(power), _power(power)) for power in range(first, last + 1, step)]


def _scale(axis: Axis, values: Sequence[float], start: float, stop: float, *, tight: bool) -> Scale:
    """The scale of values; a tight one ends where they do, another at ticks."""
    placed = [axis.place(value) for value in values if axis.shows(value)]
    low, high = (min(placed), max(placed)) if placed else (0.0, 1.0)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    whole = tight and all(float(value).is_integer() for value in placed)
    ticks = _ticks(axis, low, high, 7, whole=whole)
    if tight:
        ticks = [tick for tick in ticks if low - 1e-9 <= tick[0] <= high + 1e-9]
        return Scale(axis, low, high, start, stop, ticks)
    return Scale(axis, ticks[0][0], ticks[-1][0], start, stop, ticks)


def coordinate(value: float) -> str:
    """A tenth of a unit is as fine as a drawing needs."""
    return f"{value:.1f}".removesuffix(".0")


def _paths(one: Series, across: Scale, up: Scale) -> str:
    """The line, broken where a value can't be shown."""
    points = list(zip(one.x, one.y, strict=True))
    parts = []
    for shown, run in groupby(points, lambda point: across.axis.shows(point[0]) and up.axis.shows(point[1])):
        if shown:
            places = [f"{coordinate(across.point(x))} {coordinate(up.point(y))}" for x, y in run]
            parts.append(f"M{'L'.join(places)}")
    dashes = ' stroke-dasharray="6 5"' if one.dashed else ""
    return f'<path class="line"{dashes} d="{"".join(parts)}"/>' if parts else ""


def _marks(one: Series, number: int, across: Scale, up: Scale) -> str:
    """Markers at some points, each with its values for the pointer; hollow where the line is dashed."""
    size = len(one.x)
    chosen = sorted({round(at * (size - 1) / max(1, min(size, MARKERS) - 1)) for at in range(min(size, MARKERS))})
    faint = ' fill-opacity=".35"' if one.dashed else ""
    found = []
    for at in chosen if not one.labels else range(size):
        x, y = one.x[at], one.y[at]
        if across.axis.shows(x) and up.axis.shows(y):
            label = f"{visible(one.labels[at])}\n" if one.labels else ""
            place = f"translate({coordinate(across.point(x))} {coordinate(up.point(y))})"
            told = html(f"{one.name}\n{label}{across.axis.name}: {x:.6g}\n{up.axis.name}: {y:.4g}")
            shape = SHAPES[number % len(SHAPES)]
            found.append(f'<path class="mark"{faint} transform="{place}" d="{shape}"><title>{told}</title></path>')
    return "".join(found)


def _turned(across: Scale) -> float:
    """How much higher the labels below are because they are turned; 0 where they stand side by side."""
    if not across.axis.every or not across.ticks:
        return 0.0
    max_length = max(len(text) for _, text in across.ticks)
    apart = (across.stop - across.start) / max(1, len(across.ticks) - 1)
    return 0.0 if max_length * LETTER <= apart else max_length * LETTER - FONT


def _below(x: float, bottom: float, text: str, *, turned: bool) -> str:
    if turned:
        place = f'transform="translate({coordinate(x + 4)} {bottom + GAP}) rotate(-90)" text-anchor="end"'
    else:
        place = f'x="{coordinate(x)}" y="{bottom + FONT + 4}"'
    return f"<text {place}>{html(text)}</text>"


def _frame(across: Scale, up: Scale) -> str:
    left, right, bottom, top = across.start, across.stop, up.start, up.stop
    lines = "".join(f"M{coordinate(left)} {coordinate(up.at(tick))}H{coordinate(right)}" for tick, _ in up.ticks)
    lines += "".join(f"M{coordinate(across.at(tick))} {coordinate(top)}V{coordinate(bottom)}" for tick, _ in across.ticks)
    down = "".join(f'<text x="{left - GAP}" y="{coordinate(up.at(tick))}" dy=".35em">{text}</text>' for tick, text in up.ticks)
    below = "".join(_below(across.at(tick), bottom, text, turned=_turned(across) > 0) for tick, text in across.ticks)
    return (
        f'<path class="grid" shape-rendering="crispEdges" d="{lines}"/>'
        f'<path class="frame" shape-rendering="crispEdges" d="M{left} {top}V{bottom}H{right}"/>'
        f'<g text-anchor="end">{down}</g><g text-anchor="middle">{below}</g>'
    )


def _names(across: Scale, up: Scale) -> str:
    """What the axes are."""
    middle = (across.start + across.stop) / 2, (up.start + up.stop) / 2
    return (
        f'<g text-anchor="middle" font-style="italic">'
        f'<text x="{middle[0]}" y="{coordinate(up.start + 2 * LINE + _turned(across))}">{html(across.axis.name)}</text>'
        f'<text transform="translate({MARGIN + 4} {middle[1]}) rotate(-90)">{html(up.axis.name)}</text></g>'
    )


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _entry(one: Series, across: Axis, up: Axis) -> str:
    """What the legend says of a series; of one that has no line, why."""
    shown = any(across.shows(x) and up.shows(y) for x, y in zip(one.x, one.y, strict=True))
    zero = up.log and any(y == 0 for y in one.y)
    return _short(one.name) + ("" if shown else " (0 everywhere)" if zero else " (no values)")


def _legend(series: Sequence[Series], numbers: Sequence[int], names: Sequence[str], top: float) -> tuple[str, float]:
    """A sample and a name of each series, in as many columns as fit, and how high that is."""
    if len(series) == 1 and not series[0].name:
        return "", 0.0
    wide = SAMPLE + GAP + 7.8 * max(map(len, names)) + 14
    columns = max(1, min(len(series), int((WIDE + LEFT) // wide)))
    rows = -(-len(series) // columns)
    parts = []
    for at, (one, number, name) in enumerate(zip(series, numbers, names, strict=True)):
        x, y = MARGIN + (at // rows) * wide, top + (at % rows) * LINE + LINE / 2
        dashes, faint = (' stroke-dasharray="6 5"', ' fill-opacity=".35"') if one.dashed else ("", "")
        shape = SHAPES[number % len(SHAPES)]
        parts.append(
            f'<g class="s{number % len(LIGHT)}" transform="translate({coordinate(x)} {coordinate(y)})">'
            f'<path class="line"{dashes} d="M0 0H{SAMPLE}"/>'
            f'<path class="mark"{faint} transform="translate({SAMPLE / 2})" d="{shape}"/>'
            f'<text x="{SAMPLE + GAP}" dy=".35em">{html(name)}</text></g>'
        )
    return "".join(parts), rows * LINE


def _check(series: Sequence[Series]) -> None:
    if not series:
        raise UsageError("lines", "there is nothing to draw: no series is given")
    for one in series:
        if len(one.x) != len(one.y) or (one.labels and len(one.labels) != len(one.x)):
            raise UsageError(
                "lines",
                f"{one.name!r} has {len(one.x)} x, {len(one.y)} y and {len(one.labels)} labels",
                "give one each a point",
            )


def _drawn(series: Sequence[Series], across: Scale, up: Scale, numbers: Sequence[int]) -> str:
    return "\n".join(
        f'<g class="s{number % len(LIGHT)}">{_paths(one, across, up)}{_marks(one, number, across, up)}</g>'
        for one, number in zip(series, numbers, strict=True)
    )


def drawn_title(title: str, letters: int) -> tuple[str, int]:
    """A title in bold, in lines of so many letters, and how high they are."""
    told = wrap(title, letters, break_long_words=False, break_on_hyphens=False)
    spans = "".join(f'<tspan x="{MARGIN}" dy="{LINE}">{html(line)}</tspan>' for line in told)
    return f'<text y="{MARGIN - 4}" font-weight="bold">{spans}</text>' if told else "", len(told) * LINE


def lines(series: Sequence[Series], *, across: Axis, up: Axis, title: str = "") -> str:
    """The series as an SVG; each group has a colour and a marker of its own, in the order they come."""
    _check(series)
    groups = list(dict.fromkeys(one.group or one.name for one in series))
    numbers = [groups.index(one.group or one.name) for one in series]
    heading, height = drawn_title(title, (LEFT + WIDE) // 8)
    top = MARGIN + height + 2 * GAP
    bottom, right = top + HIGH, LEFT + WIDE
    horizontal = _scale(across, [x for one in series for x in one.x], LEFT, right, tight=True)
    vertical = _scale(up, [y for one in series for y in one.y], bottom, top, tight=False)
    names = [_entry(one, across, up) for one in series]
    foot = bottom + 2.6 * LINE + _turned(horizontal)
    legend, high = _legend(series, numbers, names, foot)
    size = f'width="{right + RIGHT}" height="{coordinate(foot + high + MARGIN)}"'
    box = f'viewBox="0 0 {right + RIGHT} {coordinate(foot + high + MARGIN)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-lines" role="img" '
            f'aria-label="{html(title or "line chart")}" {size} {box}>',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>',
            heading,
            _frame(horizontal, vertical) + _names(horizontal, vertical),
            _drawn(series, horizontal, vertical, numbers),
            legend,
            "</svg>\n",
        ]
    )
