"""A line chart as a self-contained SVG: several series with markers and a legend, on linear or logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

WIDTH, HEIGHT = 540, 300  # of the plot
LEFT, RIGHT, MARGIN, GAP = 66, 24, 12, 6
FONT, LINE = 13, 19
MAX_MARKERS = 12  # per series: more would hide the line
MAX_NAME_CHARS = 44  # in the legend
MAX_TICK_CHARS, CHAR_WIDTH = 16, 7.8  # of a tick label; approximate width of a character
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


def _scheme(colors: Sequence[str]) -> str:
    return "".join(
        f".weft-lines .s{index} path{{stroke:{color}}}.weft-lines .s{index} use,.weft-lines .s{index} .mark{{fill:{color}}}"
        for index, color in enumerate(colors)
    )


# every rule under our class, no variables: as in heatmap.py
STYLE = (
    # a chart is read as a whole: on a phone it shrinks as far as its text allows, where other drawings scroll
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
    y: Sequence[float]  # non-finite values, and those up to 0 on a logarithmic axis, break the line
    group: str = ""  # series of a group share color and marker
    dashed: bool = False
    labels: Sequence[str] = ()  # of the points, for tooltips


class Axis(NamedTuple):
    name: str
    log: bool = False
    names: Sequence[str] = ()  # of the values 0, 1, ...; values with an empty name get no tick
    show_all: bool = False  # draw as many names as fit, rotated if they are long; else a few

    def position(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def shows(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)


class Scale(NamedTuple):
    """Maps values to pixels; has the ticks."""

    axis: Axis
    low: float  # both are exponents on a logarithmic axis
    high: float
    start: float  # pixels
    stop: float
    ticks: list[tuple[float, str]]  # position and label

    def pixel(self, position: float) -> float:
        return self.start + (position - self.low) / (self.high - self.low) * (self.stop - self.start)

    def point(self, value: float) -> float:
        return self.pixel(self.axis.position(value))


def _power(exponent: int) -> str:
    return "1" if exponent == 0 else f"10{str(exponent).translate(SUPERSCRIPTS)}"


def _linear_ticks(low: float, high: float, limit: int, *, integer: bool) -> list[float]:
    """Round numbers that include `low` and `high`; integers if `integer`."""
    min_step = max((high - low) / limit, 1.0 if integer else 0.0)
    unit = 10.0 ** math.floor(math.log10(min_step))
    step = next(unit * size for size in (1, 2, 5, 10) if unit * size >= min_step * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    count = math.ceil(high / step - 1e-9) - first
    return [(first + index) * step for index in range(count + 1)]


def _tick_label(text: str) -> str:
    """A token below a tick: visible characters only, truncated if it is long."""
    label = visible(text)
    return label if len(label) <= MAX_TICK_CHARS else label[: MAX_TICK_CHARS - 1] + "…"


def _ticks(axis: Axis, low: float, high: float, limit: int, *, integer: bool) -> list[tuple[float, str]]:
    if axis.names:
        ticks = [(float(value), _tick_label(name) if axis.show_all else name) for value, name in enumerate(axis.names) if name]
        max_ticks = WIDTH // FONT if axis.show_all else limit + 2
        return ticks[:: -(-len(ticks) // max_ticks)]
    if not axis.log:
        return [(tick, f"{tick:,.6g}") for tick in _linear_ticks(low, high, limit, integer=integer)]
    first, last = math.floor(low + 1e-9), math.ceil(high - 1e-9)
    last = max(last, first + 1)
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100) if size * limit >= last - first)
    first, last = first // step * step, -(-last // step) * step
    return [(float(power), _power(power)) for power in range(first, last + 1, step)]


def _scale(axis: Axis, values: Sequence[float], start: float, stop: float, *, tight: bool) -> Scale:
    """The scale of the values; it ends at the extreme values if `tight`, else at ticks."""
    positions = [axis.position(value) for value in values if axis.shows(value)]
    low, high = (min(positions), max(positions)) if positions else (0.0, 1.0)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    integer = tight and all(float(value).is_integer() for value in positions)
    ticks = _ticks(axis, low, high, 7, integer=integer)
    if tight:
        ticks = [tick for tick in ticks if low - 1e-9 <= tick[0] <= high + 1e-9]
        return Scale(axis, low, high, start, stop, ticks)
    return Scale(axis, ticks[0][0], ticks[-1][0], start, stop, ticks)


def coordinate(value: float) -> str:
    """A coordinate with one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _path(series: Series, x_scale: Scale, y_scale: Scale) -> str:
    """The line, broken at values that cannot be shown."""
    points = list(zip(series.x, series.y, strict=True))
    parts = []
    for is_shown, segment in groupby(points, lambda point: x_scale.axis.shows(point[0]) and y_scale.axis.shows(point[1])):
        if is_shown:
            positions = [f"{coordinate(x_scale.point(x))} {coordinate(y_scale.point(y))}" for x, y in segment]
            parts.append(f"M{'L'.join(positions)}")
    dashes = ' stroke-dasharray="6 5"' if series.dashed else ""
    return f'<path class="line"{dashes} d="{"".join(parts)}"/>' if parts else ""


def _markers(series: Series, group_index: int, x_scale: Scale, y_scale: Scale) -> str:
    """Markers at some points, with the values in their tooltips; pale if the line is dashed."""
    size = len(series.x)
    count = min(size, MAX_MARKERS)
    selected = sorted({round(index * (size - 1) / max(1, count - 1)) for index in range(count)})
    faint = ' fill-opacity=".35"' if series.dashed else ""
    marks = []
    for index in selected if not series.labels else range(size):
        x, y = series.x[index], series.y[index]
        if x_scale.axis.shows(x) and y_scale.axis.shows(y):
            label = f"{visible(series.labels[index])}\n" if series.labels else ""
            position = f"translate({coordinate(x_scale.point(x))} {coordinate(y_scale.point(y))})"
            tooltip = html(f"{series.name}\n{label}{x_scale.axis.name}: {x:.6g}\n{y_scale.axis.name}: {y:.4g}")
            shape = SHAPES[group_index % len(SHAPES)]
            marks.append(f'<path class="mark"{faint} transform="{position}" d="{shape}"><title>{tooltip}</title></path>')
    return "".join(marks)


def _rotated_height(x_scale: Scale) -> float:
    """Extra height of tick labels that are rotated; 0 if they are not."""
    if not x_scale.axis.show_all or not x_scale.ticks:
        return 0.0
    max_length = max(len(text) for _, text in x_scale.ticks)
    spacing = (x_scale.stop - x_scale.start) / max(1, len(x_scale.ticks) - 1)
    return 0.0 if max_length * CHAR_WIDTH <= spacing else max_length * CHAR_WIDTH - FONT


def _draw_tick(x: float, bottom: float, text: str, *, rotated: bool) -> str:
    if rotated:
        position = f'transform="translate({coordinate(x + 4)} {bottom + GAP}) rotate(-90)" text-anchor="end"'
    else:
        position = f'x="{coordinate(x)}" y="{bottom + FONT + 4}"'
    return f"<text {position}>{html(text)}</text>"


def _frame(x_scale: Scale, y_scale: Scale) -> str:
    left, right, bottom, top = x_scale.start, x_scale.stop, y_scale.start, y_scale.stop
    lines = "".join(f"M{coordinate(left)} {coordinate(y_scale.pixel(tick))}H{coordinate(right)}" for tick, _ in y_scale.ticks)
    lines += "".join(f"M{coordinate(x_scale.pixel(tick))} {coordinate(top)}V{coordinate(bottom)}" for tick, _ in x_scale.ticks)
    y_ticks = "".join(
        f'<text x="{left - GAP}" y="{coordinate(y_scale.pixel(tick))}" dy=".35em">{text}</text>' for tick, text in y_scale.ticks
    )
    x_ticks = "".join(
        _draw_tick(x_scale.pixel(tick), bottom, text, rotated=_rotated_height(x_scale) > 0) for tick, text in x_scale.ticks
    )
    return (
        f'<path class="grid" shape-rendering="crispEdges" d="{lines}"/>'
        f'<path class="frame" shape-rendering="crispEdges" d="M{left} {top}V{bottom}H{right}"/>'
        f'<g text-anchor="end">{y_ticks}</g><g text-anchor="middle">{x_ticks}</g>'
    )


def _axis_names(x_scale: Scale, y_scale: Scale) -> str:
    """The names of the axes."""
    x_center, y_center = (x_scale.start + x_scale.stop) / 2, (y_scale.start + y_scale.stop) / 2
    x_name_y = coordinate(y_scale.start + 2 * LINE + _rotated_height(x_scale))
    return (
        f'<g text-anchor="middle" font-style="italic"><text x="{x_center}" y="{x_name_y}">{html(x_scale.axis.name)}</text>'
        f'<text transform="translate({MARGIN + 4} {y_center}) rotate(-90)">{html(y_scale.axis.name)}</text></g>'
    )


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 1] + "…"


def _legend_text(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    """The name of a series in the legend; if it has no line, with the reason."""
    is_shown = any(x_axis.shows(x) and y_axis.shows(y) for x, y in zip(series.x, series.y, strict=True))
    is_zero = y_axis.log and any(y == 0 for y in series.y)
    return _short(series.name) + ("" if is_shown else " (0 everywhere)" if is_zero else " (no values)")


def _legend(series: Sequence[Series], group_indices: Sequence[int], names: Sequence[str], top: float) -> tuple[str, float]:
    """The legend in as many columns as fit, and its height."""
    if len(series) == 1 and not series[0].name:
        return "", 0.0
    width = SAMPLE + GAP + CHAR_WIDTH * max(map(len, names)) + 14
    columns = max(1, min(len(series), int((WIDTH + LEFT) // width)))
    rows = -(-len(series) // columns)
    parts = []
    for index, (line, group_index, name) in enumerate(zip(series, group_indices, names, strict=True)):
        x, y = MARGIN + (index // rows) * width, top + (index % rows) * LINE + LINE / 2
        dashes, faint = (' stroke-dasharray="6 5"', ' fill-opacity=".35"') if line.dashed else ("", "")
        shape = SHAPES[group_index % len(SHAPES)]
        parts.append(
            f'<g class="s{group_index % len(LIGHT)}" transform="translate({coordinate(x)} {coordinate(y)})">'
            f'<path class="line"{dashes} d="M0 0H{SAMPLE}"/>'
            f'<path class="mark"{faint} transform="translate({SAMPLE / 2})" d="{shape}"/>'
            f'<text x="{SAMPLE + GAP}" dy=".35em">{html(name)}</text></g>'
        )
    return "".join(parts), rows * LINE


def _check(series: Sequence[Series]) -> None:
    if not series:
        raise UsageError("lines", "nothing to draw: no series")
    for line in series:
        if len(line.x) != len(line.y) or (line.labels and len(line.labels) != len(line.x)):
            raise UsageError(
                "lines",
                f"{line.name!r} has {len(line.x)} x, {len(line.y)} y and {len(line.labels)} labels",
                "pass one of each per point",
            )


def _draw(series: Sequence[Series], x_scale: Scale, y_scale: Scale, group_indices: Sequence[int]) -> str:
    return "\n".join(
        f'<g class="s{group % len(LIGHT)}">{_path(line, x_scale, y_scale)}{_markers(line, group, x_scale, y_scale)}</g>'
        for line, group in zip(series, group_indices, strict=True)
    )


def draw_title(title: str, chars: int) -> tuple[str, int]:
    """A bold title, wrapped at `chars` characters, and its height."""
    wrapped = wrap(title, chars, break_long_words=False, break_on_hyphens=False)
    spans = "".join(f'<tspan x="{MARGIN}" dy="{LINE}">{html(line)}</tspan>' for line in wrapped)
    return f'<text y="{MARGIN - 4}" font-weight="bold">{spans}</text>' if wrapped else "", len(wrapped) * LINE


def lines(series: Sequence[Series], *, x_axis: Axis, y_axis: Axis, title: str = "") -> str:
    """The series as an SVG; each group has its own color and marker, in order of occurrence."""
    _check(series)
    groups = list(dict.fromkeys(line.group or line.name for line in series))
    group_indices = [groups.index(line.group or line.name) for line in series]
    heading, height = draw_title(title, (LEFT + WIDTH) // 8)
    top = MARGIN + height + 2 * GAP
    bottom, right = top + HEIGHT, LEFT + WIDTH
    x_scale = _scale(x_axis, [x for line in series for x in line.x], LEFT, right, tight=True)
    y_scale = _scale(y_axis, [y for line in series for y in line.y], bottom, top, tight=False)
    names = [_legend_text(line, x_axis, y_axis) for line in series]
    legend_top = bottom + 2.6 * LINE + _rotated_height(x_scale)
    legend, legend_height = _legend(series, group_indices, names, legend_top)
    size = f'width="{right + RIGHT}" height="{coordinate(legend_top + legend_height + MARGIN)}"'
    box = f'viewBox="0 0 {right + RIGHT} {coordinate(legend_top + legend_height + MARGIN)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-lines" role="img" '
            f'aria-label="{html(title or "line chart")}" {size} {box}>',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>',
            heading,
            _frame(x_scale, y_scale) + _axis_names(x_scale, y_scale),
            _draw(series, x_scale, y_scale, group_indices),
            legend,
            "</svg>\n",
        ]
    )
