"""A text with a background color per token as a self-contained SVG, such as surprisal or the activation of a unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible
from weft.text.table_layout import display_width

MAX_WIDTH = 640  # of a line
CHAR_WIDTH, LINE, MARGIN, GAP = 8.4, 26, 12, 6  # the width of a character in a 14 px monospace font
STEPS = 9  # in the legend
SWATCH, BAR = 24, 10
MAX_CHARS = 60  # of a token; the tooltip has the whole token
# opacity over paper, one color per sign and scheme, as in heatmap.py
STYLE = (
    ".weft-token-heatmap{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-token-heatmap .paper{fill:#fff}"
    ".weft-token-heatmap .up{fill:#d9480f}"
    ".weft-token-heatmap .down{fill:#1864ab}"
    ".weft-token-heatmap text{fill:#111}"
    ".weft-token-heatmap .token{font:14px ui-monospace,monospace;white-space:pre}"
    ".weft-token-heatmap .sign{fill-opacity:.45}"
    ".weft-token-heatmap .edge{stroke:#888;stroke-opacity:.4;fill:none}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-token-heatmap .paper{fill:#15181d}"
    ".weft-token-heatmap .up{fill:#e8590c}"
    ".weft-token-heatmap .down{fill:#339af0}"
    ".weft-token-heatmap text{fill:#eee}"
    "}"
)


class _PlacedToken(NamedTuple):
    """A token with its position."""

    label: str
    x: float
    line: int
    width: float


def _label(token: str) -> str:
    """A token as it is drawn: newlines and spaces become symbols."""
    text = visible(token.replace("\n", "⏎")) if token != "\n" else "⏎"
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def _layout(tokens: Sequence[str]) -> tuple[list[_PlacedToken], int]:
    """The tokens in lines of at most MAX_WIDTH, and the number of lines; a newline ends a line."""
    placed, x, line = list[_PlacedToken](), 0.0, 0
    for token in tokens:
        label = _label(token)
        width = display_width(label) * CHAR_WIDTH + (6 if len(token) > 1 else 0)
        if x and x + width > MAX_WIDTH:
            x, line = 0.0, line + 1
        placed.append(_PlacedToken(label, x, line, width))
        x += width
        if token.endswith("\n"):
            x, line = 0.0, line + 1
    return placed, (placed[-1].line if placed else 0) + 1


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _draw(layout: Sequence[_PlacedToken], tokens: Sequence[str], values: np.ndarray, maximum: float, top: float) -> str:
    parts = []
    for placed, token, value in zip(layout, tokens, values.tolist(), strict=True):
        x, y = MARGIN + placed.x, top + placed.line * LINE
        tooltip = html(f"{visible(token)}\n{value:.4g}")
        # symbols for spaces and newlines are paler than text
        pale = " sign" if placed.label.strip("␣⏎") == "" else ""
        box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(placed.width)}" height="{LINE - 4}"'
        opacity = _number(min(1.0, abs(value) / maximum) * 0.75)
        parts.append(
            f'<g><title>{tooltip}</title><rect class="{"down" if value < 0 else "up"}" {box} opacity="{opacity}"/>'
            f'<text class="token{pale}" x="{_number(x + placed.width / 2)}" y="{_number(y + 15.5)}" '
            f'textLength="{_number(max(1.0, display_width(placed.label)) * CHAR_WIDTH)}" '
            f'lengthAdjust="spacingAndGlyphs">{html(placed.label)}</text></g>'
        )
    return f'<g text-anchor="middle">{"".join(parts)}</g>'


def _legend(values: np.ndarray, maximum: float, top: float, name: str) -> str:
    low = -maximum if (values < 0).any() else 0.0
    parts = []
    for step in range(STEPS):
        value = low + step * (maximum - low) / (STEPS - 1)
        box = f'x="{MARGIN + step * SWATCH}" y="{_number(top)}" width="{SWATCH}" height="{BAR}"'
        sign = "down" if value < 0 else "up"
        parts.append(f'<rect class="{sign}" {box} opacity="{_number(abs(value) / maximum * 0.75)}"/>')
        parts.append(f'<rect class="edge" {box}/>')
    ends = [(MARGIN, "start", low), (MARGIN + STEPS * SWATCH, "end", maximum)]
    parts += [
        f'<text x="{x}" y="{_number(top + BAR + 13)}" text-anchor="{anchor}" font-size="11">{value:.3g}</text>'
        for x, anchor, value in ends
    ]
    parts.append(f'<text x="{MARGIN + STEPS * SWATCH + 10}" y="{_number(top + BAR)}">{html(name)}</text>')
    return "".join(parts)


def token_heatmap(
    tokens: Sequence[str], values: np.ndarray, *, name: str, title: str = "", maximum: float | None = None
) -> str:
    """Tokens and their values (N,) as an SVG: orange above 0, blue below. `maximum` is the value with the strongest color.
    Default: the largest absolute value."""
    if values.shape != (len(tokens),) or not len(tokens):
        raise UsageError("token_heatmap", f"{len(tokens)} tokens do not match values of shape {values.shape}")
    if not np.isfinite(values).all():
        raise UsageError("token_heatmap", "values must be finite")
    limit = maximum or float(np.abs(values).max()) or 1.0
    layout, num_lines = _layout(tokens)
    top = MARGIN + (24 if title else 0)
    bottom = top + num_lines * LINE + GAP
    width = max([MAX_WIDTH * bool(len(tokens) > 60), STEPS * SWATCH + 160, *(placed.x + placed.width for placed in layout)])
    width = max(width, 7.4 * len(title))
    size = f'width="{_number(width + 2 * MARGIN)}" height="{_number(bottom + BAR + 20 + MARGIN)}"'
    box = f'viewBox="0 0 {_number(width + 2 * MARGIN)} {_number(bottom + BAR + 20 + MARGIN)}"'
    heading = f'<text x="{MARGIN}" y="{MARGIN + 12}" font-weight="bold">{html(title)}</text>' if title else ""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-token-heatmap" role="img" '
            f'aria-label="{html(title or name)}" {size} {box}>',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>{heading}',
            _draw(layout, tokens, values, limit, top),
            _legend(values, limit, bottom, name),
            "</svg>\n",
        ]
    )
