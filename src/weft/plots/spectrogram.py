"""A spectrogram as a self-contained SVG, with rows below it on the same time axis: words, probabilities of labels, weights.

Shapes: T frames, F bands, S positions of a model, N tokens.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.heatmap import FONT, GAP, LINE, MARGIN, heading, number, visible
from weft.plots.lines import DARK, LIGHT
from weft.plots.png import draw_bitmap

MIN_WIDTH, MAX_WIDTH, PER_SECOND = 480, 2400, 220  # of the plot
LEFT = 64  # for the labels of rows
SPECTROGRAM, CURVES, TOKEN_ROW = 150, 110, 14  # heights; that of a row of weights
MIN_PROBABILITY = 0.02  # smaller ones are not drawn
MIN_LABELED = 0.2  # peaks below this are not named, unless the label was chosen
LABEL_SPACE = 9  # between the labels of peaks
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds
FREQUENCIES = (250, 500, 1000, 2000, 4000, 8000)  # Hz
FADED = 0.4  # factor of the shades under a highlight
CONTRAST = (0.05, 0.995)  # quantiles of the values that become white and black


def _scheme(colors: Sequence[str]) -> str:
    return "".join(
        f".weft-spectrogram .s{index}{{stroke:{color};fill:{color}}}.weft-spectrogram .t{index}{{fill:{color}}}"
        for index, color in enumerate(colors)
    )


# every rule under our class, opacity over paper, no variables: as in heatmap.py
STYLE = (
    ".weft-spectrogram{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-spectrogram .paper{fill:#fff}"
    ".weft-spectrogram .ink{fill:#08306b}"
    ".weft-spectrogram .up{fill:#d9480f}"
    ".weft-spectrogram .frame{stroke:#888;stroke-opacity:.6;fill:none}"
    ".weft-spectrogram .grid{stroke:#888;stroke-opacity:.3;fill:none}"
    ".weft-spectrogram .word{fill:#888;fill-opacity:.18;stroke:#888;stroke-opacity:.6}"
    ".weft-spectrogram .curve{stroke-width:1.5;fill-opacity:.25;stroke-linejoin:round}"
    ".weft-spectrogram text{fill:#222}"
    ".weft-spectrogram .small{font-size:10px}"
    ".weft-spectrogram .bold{font-weight:600}" + _scheme(LIGHT) + "@media screen and (prefers-color-scheme:dark){"
    ".weft-spectrogram .paper{fill:#15181d}"
    ".weft-spectrogram .ink{fill:#9ecbff}"
    ".weft-spectrogram .up{fill:#ff922b}"
    ".weft-spectrogram text{fill:#ddd}" + _scheme(DARK) + "}"
)


class Span(NamedTuple):
    """A word or a token, and when it was said."""

    text: str
    start: float  # seconds
    end: float


class Curves(NamedTuple):
    """Probabilities of labels over time."""

    probs: np.ndarray  # (S, N), of each label
    labels: Sequence[str]  # N
    peaks: Sequence[Span]  # the labels that were chosen, with their times
    seconds: float  # per position


class Weights(NamedTuple):
    """Weights of positions, such as attention, one row per token."""

    values: np.ndarray  # (N, S), at least 0
    tokens: Sequence[str]
    seconds: float


class Sound(NamedTuple):
    """A spectrogram, and which frames mattered."""

    features: np.ndarray  # (T, F): log energies
    seconds: float  # per frame
    frequencies: Sequence[float] = ()  # Hz, of the bands; (): no labels
    highlight: np.ndarray | None = None  # (T, F) from 0 to 1, drawn over the features


class _Axis(NamedTuple):
    """The time axis."""

    seconds: float
    width: float

    def x(self, time: float) -> float:
        return LEFT + self.width * min(1.0, time / self.seconds)

    def ticks(self) -> list[float]:
        step = next((step for step in TICKS if self.width * step / self.seconds >= 56), TICKS[-1])
        return [index * step for index in range(int(self.seconds / step + 1e-9) + 1)]


def _shades(features: np.ndarray) -> np.ndarray:
    """Values as shades from 0 to 1, highest frequency first, (F, T)."""
    low, high = np.quantile(features, CONTRAST)
    scaled: np.ndarray = ((features - low) / max(high - low, 1e-6)).clip(0, 1)
    return scaled.T[::-1]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{number(x)}" y="{number(y)}"{more}>{escape(text)}</text>'


def _draw_sound(sound: Sound, axis: _Axis, top: float) -> str:
    width = axis.width * len(sound.features) * sound.seconds / axis.seconds
    box = f'x="{LEFT}" y="{number(top)}" width="{number(width)}" height="{SPECTROGRAM}"'
    shades = _shades(sound.features) * (1.0 if sound.highlight is None else FADED)
    parts = [draw_bitmap(shades, f"sound-{zlib.crc32(shades.tobytes()):x}", box)]
    if sound.highlight is not None:
        over = sound.highlight.T[::-1].clip(0, 1)
        bitmap = draw_bitmap(over, f"over-{zlib.crc32(np.ascontiguousarray(over).tobytes()):x}", box)
        parts.append(bitmap.replace('class="ink"', 'class="up"'))
    parts.append(f'<rect class="frame" {box}/>')
    bands = np.asarray(sound.frequencies)
    for frequency in FREQUENCIES:
        if len(bands) and bands[0] <= frequency <= bands[-1]:
            band = float(np.interp(frequency, bands, np.arange(len(bands))))
            y = top + SPECTROGRAM * (1 - (band + 0.5) / len(bands))
            name = f"{frequency / 1000:g} kHz" if frequency >= 1000 else f"{frequency} Hz"
            parts.append(f'<path class="frame" d="M{LEFT - 4} {number(y)}h4"/>')
            parts.append(_text(LEFT - 6, y + 3.5, name, ' class="small" text-anchor="end"'))
    return "".join(parts)


def _word_rows(words: Sequence[Span], axis: _Axis) -> list[int]:
    """The row of each word, so that their texts do not overlap."""
    ends: list[float] = []
    rows = []
    for word in words:
        half = 0.31 * FONT * len(word.text) + 2
        center = axis.x((word.start + word.end) / 2)
        left, right = min(axis.x(word.start), center - half), max(axis.x(word.end), center + half)
        row = next((index for index, end in enumerate(ends) if end <= left), len(ends))
        ends[row:] = [right, *ends[row + 1 :]]
        rows.append(row)
    return rows


def _draw_words(words: Sequence[Span], axis: _Axis, top: float) -> tuple[str, float]:
    """The words with their times, and the height."""
    rows = _word_rows(words, axis)
    parts = []
    for word, row in zip(words, rows, strict=True):
        x, y = axis.x(word.start), top + row * (LINE + 4)
        width = max(2.0, axis.x(word.end) - x)
        title = f"<title>{escape(visible(word.text))}\n{word.start:.2f} to {word.end:.2f} s</title>"
        parts.append(
            f'<rect class="word" x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{LINE}">{title}</rect>'
        )
        parts.append(_text(x + width / 2, y + 12, visible(word.text), ' class="bold" text-anchor="middle"'))
    return "".join(parts), (max(rows, default=-1) + 1) * (LINE + 4)


def _segments(probs: np.ndarray) -> list[tuple[int, int]]:
    """The stretches of positions with a probability that is drawn: first, and after the last."""
    is_drawn = np.concatenate([[False], probs >= MIN_PROBABILITY, [False]])
    edges = np.flatnonzero(is_drawn[1:] != is_drawn[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _draw_curves(curves: Curves, axis: _Axis, top: float) -> str:
    bottom = top + CURVES
    parts = [
        f'<path class="grid" d="M{LEFT} {number(bottom - CURVES * share)}h{number(axis.width)}"/>'
        + _text(LEFT - 6, bottom - CURVES * share + 3.5, f"{share:g}", ' class="small" text-anchor="end"')
        for share in (0, 0.5, 1)
    ]
    for index, label in enumerate(curves.labels):
        color = f"s{index % len(LIGHT)}"
        for first, last in _segments(curves.probs[:, index]):
            # a position covers an interval of time: the curve has its value at the center
            points = [(first, 0.0), *((p + 0.5, float(curves.probs[p, index])) for p in range(first, last)), (last, 0.0)]
            path = "L".join(f"{number(axis.x(p * curves.seconds))} {number(bottom - CURVES * prob)}" for p, prob in points)
            best = float(curves.probs[first:last, index].max())
            title = f"<title>{escape(visible(label))}\n{number(best)}</title>"
            parts.append(f'<path class="curve {color}" d="M{path}">{title}</path>')
            start, end = first * curves.seconds, last * curves.seconds
            is_chosen = any(peak.text == label and peak.start < end and start < peak.end for peak in curves.peaks)
            if best >= MIN_LABELED and not is_chosen:  # what the model also considered
                x, y = max(points, key=lambda point: point[1])
                more = f' class="t{index % len(LIGHT)} small" text-anchor="middle"'
                parts.append(_text(axis.x(x * curves.seconds), bottom - CURVES * y - 3, visible(label), more))
    colors = {label: index % len(LIGHT) for index, label in enumerate(curves.labels)}
    previous = -math.inf
    for peak in curves.peaks:
        x = max(axis.x((peak.start + peak.end) / 2), previous + LABEL_SPACE)
        previous = x
        color = f' class="t{colors.get(peak.text, 0)} bold" text-anchor="middle"'
        parts.append(_text(x, top - 5, visible(peak.text), color))
    return "".join(parts) + _name("probability", top + CURVES / 2)


def _name(text: str, y: float) -> str:
    """The name of a row, beside its axis."""
    return f'<text class="small" text-anchor="middle" transform="translate({MARGIN + 6} {number(y)}) rotate(-90)">{text}</text>'


def _draw_weights(weights: Weights, axis: _Axis, top: float) -> str:
    height = TOKEN_ROW * len(weights.tokens)
    width = axis.width * weights.values.shape[1] * weights.seconds / axis.seconds
    shades = np.sqrt(weights.values.clip(0, 1))
    box = f'x="0" y="0" width="{number(width)}" height="{height}"'
    bitmap = draw_bitmap(shades, f"weights-{zlib.crc32(shades.tobytes()):x}", box)
    frame = f'x="{LEFT}" y="{number(top)}" width="{number(axis.width)}" height="{height}"'
    parts = [f'<svg {frame}>{bitmap}</svg><rect class="frame" {frame}/>']  # the last position may end after the recording
    for row, token in enumerate(weights.tokens):
        y = top + (row + 0.5) * TOKEN_ROW
        parts.append(_text(LEFT - 6, y + 3.5, visible(token)[:8], ' class="small" text-anchor="end"'))
    return "".join(parts)


def _draw_axis(axis: _Axis, top: float, bottom: float) -> str:
    parts = []
    for tick in axis.ticks():
        x = number(axis.x(tick))
        parts.append(f'<path class="grid" d="M{x} {number(top)}V{number(bottom + 4)}"/>')
        parts.append(_text(axis.x(tick), bottom + LINE, f"{tick:g}", ' class="small" text-anchor="middle"'))
    return "".join(parts) + _text(LEFT + axis.width / 2, bottom + 2 * LINE, "seconds", ' class="small" text-anchor="middle"')


def spectrogram(
    sound: Sound,
    *,
    words: Sequence[Span] = (),
    curves: Curves | None = None,
    weights: Weights | None = None,
    title: str = "",
) -> str:
    """The spectrogram as an SVG, with words, probabilities of labels and weights of tokens below it."""
    if sound.features.ndim != 2 or not sound.features.size or not np.isfinite(sound.features).all():
        raise UsageError("spectrogram", f"expected finite features (T, F), got the shape {sound.features.shape}")
    seconds = len(sound.features) * sound.seconds
    axis = _Axis(seconds, min(MAX_WIDTH, max(MIN_WIDTH, PER_SECOND * seconds)))
    width = LEFT + axis.width + 2 * MARGIN
    lines = _title_lines(heading(title), width)
    top = MARGIN + len(lines) * LINE + GAP
    drawn, height = _draw_words(words, axis, top + SPECTROGRAM + GAP)
    parts, y = [_draw_sound(sound, axis, top), drawn], top + SPECTROGRAM + GAP + height
    if curves is not None:
        parts.append(_draw_curves(curves, axis, y + LINE + GAP))
        y += LINE + GAP + CURVES + GAP
    if weights is not None:
        parts.append(_draw_weights(weights, axis, y + GAP))
        y += GAP + TOKEN_ROW * len(weights.tokens) + GAP
    parts.insert(1, _draw_axis(axis, top + SPECTROGRAM, y))
    total = math.ceil(y + 2 * LINE + GAP)
    size = f'width="{number(width)}" height="{total}"'
    spans = "".join(f'<tspan x="{MARGIN}" dy="{LINE}">{escape(line)}</tspan>' for line in lines)
    head = f'<text y="{MARGIN - 4}" class="bold">{spans}</text>' if lines else ""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-spectrogram" role="img" '
            f'aria-label="{escape(" ".join(lines) or "spectrogram")}" {size} viewBox="0 0 {number(width)} {total}">',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>{head}',
            *parts,
            "</svg>\n",
        ]
    )


def _title_lines(title: str, width: float) -> list[str]:
    """The title, wrapped at spaces."""
    lines, limit = list[str](), int(width / (0.62 * FONT))
    for word in title.split():
        if lines and len(lines[-1]) + 1 + len(word) <= limit:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
