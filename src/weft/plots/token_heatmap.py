"""A text as a self-contained SVG, each token on a colour that says its value: what a unit does, how surprising a token is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible
from weft.text.table_layout import display_width

WIDE = 640  # of a line
LETTER, LINE, MARGIN, GAP = 8.4, 26, 12, 6  # a letter of a font of 14 whose letters are all as wide
STEPS = 9  # in the legend
SWATCH, BAR = 24, 10
LONGEST = 60  # letters of a token; what is longer is cut, and stands whole in the tooltip
# opacity over paper, one colour a sign and scheme: as in heatmap.py
STYLE = (
    ".weft-coloured{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-coloured .paper{fill:#fff}"
    ".weft-coloured .up{fill:#d9480f}"
    ".weft-coloured .down{fill:#1864ab}"
    ".weft-coloured text{fill:#111}"
    ".weft-coloured .token{font:14px ui-monospace,monospace;white-space:pre}"
    ".weft-coloured .sign{fill-opacity:.45}"
    ".weft-coloured .edge{stroke:#888;stroke-opacity:.4;fill:none}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-coloured .paper{fill:#15181d}"
    ".weft-coloured .up{fill:#e8590c}"
    ".weft-coloured .down{fill:#339af0}"
    ".weft-coloured text{fill:#eee}"
    "}"
)


class _Token(NamedTuple):
    """A token where it is drawn."""

    shown: str
    x: float
    line: int
    width: float


def _shown(token: str) -> str:
    """A token as it is drawn: a newline by a sign, as spaces are."""
    text = visible(token.replace("\n", "⏎")) if token != "\n" else "⏎"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _laid_out(tokens: Sequence[str]) -> tuple[list[_Token], int]:
    """The tokens in lines no wider than WIDE, and how many lines there are; a newline ends one."""
    found, x, line = list[_Token](), 0.0, 0
    for token in tokens:
        shown = _shown(token)
        width = display_width(shown) * LETTER + (6 if len(token) > 1 else 0)
        if x and x + width > WIDE:
            x, line = 0.0, line + 1
        found.append(_Token(shown, x, line, width))
        x += width
        if token.endswith("\n"):
            x, line = 0.0, line + 1
    return found, (found[-1].line if found else 0) + 1


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _drawn(tokens: Sequence[str], values: np.ndarray, maximum: float, top: float) -> str:
    parts = []
    for one, token, value in zip(_laid_out(tokens)[0], tokens, values.tolist(), strict=True):
        x, y = MARGIN + one.x, top + one.line * LINE
        told = html(f"{visible(token)}\n{value:.4g}")
        # spaces and newlines are signs of the picture, not of the text: paler
        pale = " sign" if one.shown.strip("␣⏎") == "" else ""
        box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(one.width)}" height="{LINE - 4}"'
        opacity = _number(min(1.0, abs(value) / maximum) * 0.75)
        parts.append(
            f'<g><title>{told}</title><rect class="{"down" if value < 0 else "up"}" {box} opacity="{opacity}"/>'
            f'<text class="token{pale}" x="{_number(x + one.width / 2)}" y="{_number(y + 15.5)}" '
            f'textLength="{_number(max(1.0, display_width(one.shown)) * LETTER)}" '
            f'lengthAdjust="spacingAndGlyphs">{html(one.shown)}</text></g>'
        )
    return f'<g text-anchor="middle">{"".join(parts)}</g>'


def _legend(values: np.ndarray, maximum: float, top: float, name: str) -> str:
    low = -maximum if (values < 0).any() else 0.0
    parts = []
    for at in range(STEPS):
        value = low + at * (maximum - low) / (STEPS - 1)
        box = f'x="{MARGIN + at * SWATCH}" y="{_number(top)}" width="{SWATCH}" height="{BAR}"'
        kind = "down" if value < 0 else "up"
        parts.append(f'<rect class="{kind}" {box} opacity="{_number(abs(value) / maximum * 0.75)}"/>')
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
    """Tokens and their values (N,) as an SVG: orange above 0, blue below, as strong as they are large; the strongest colour is
    at `largest`, which is that of the values unless given."""
    if values.shape != (len(tokens),) or not len(tokens):
        raise UsageError(
            "coloured", f"there are {len(tokens)} tokens and values of the shape {values.shape}", "give one a token"
        )
    if not np.isfinite(values).all():
        raise UsageError("coloured", "values must be finite")
    limit = maximum or float(np.abs(values).max()) or 1.0
    top = MARGIN + (24 if title else 0)
    bottom = top + _laid_out(tokens)[1] * LINE + GAP
    wide = max([WIDE * bool(len(tokens) > 60), STEPS * SWATCH + 160, *(one.x + one.width for one in _laid_out(tokens)[0])])
    wide = max(wide, 7.4 * len(title))
    size = f'width="{_number(wide + 2 * MARGIN)}" height="{_number(bottom + BAR + 20 + MARGIN)}"'
    box = f'viewBox="0 0 {_number(wide + 2 * MARGIN)} {_number(bottom + BAR + 20 + MARGIN)}"'
    heading = f'<text x="{MARGIN}" y="{MARGIN + 12}" font-weight="bold">{html(title)}</text>' if title else ""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-coloured" role="img" '
            f'aria-label="{html(title or name)}" {size} {box}>',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>{heading}',
            _drawn(tokens, values, limit, top),
            _legend(values, limit, bottom, name),
            "</svg>\n",
        ]
    )
