"""Small bar charts side by side as a self-contained SVG: what could have come at each step, before filters and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

LETTER, LONGEST = 7.4, 12
LONG, ROW, HEAD, MARGIN, GAP = 110, 26, 26, 12, 6  # of the longest bar, of a token, above a panel, around all
WIDE = 680  # of a line of panels
STYLE = (
    ".weft-bars{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-bars .paper{fill:#fff}"
    ".weft-bars text{fill:#222}"
    ".weft-bars .before{fill:#9bb0c4}"
    ".weft-bars .after{fill:#1f6fb2}"
    ".weft-bars .came .after{fill:#1b7a34}"
    ".weft-bars .cut text{fill-opacity:.6}"
    ".weft-bars .came .name,.weft-bars .head{font-weight:bold}"
    ".weft-bars .base{stroke:#888;stroke-opacity:.4}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-bars .paper{fill:#15181d}"
    ".weft-bars text{fill:#ddd}"
    ".weft-bars .before{fill:#5b6b7a}"
    ".weft-bars .after{fill:#6cb2f2}"
    ".weft-bars .came .after{fill:#69db7c}"
    "}"
)


class Bar(NamedTuple):
    text: str
    before: float  # from 0 to 1
    after: float
    tooltip: str  # for the pointer
    filtered_by: str | None = None  # by what it was taken away
    is_chosen: bool = False


def _shown(text: str) -> str:
    found = visible(text.replace("\n", "⏎"))
    return found if len(found) <= LONGEST else found[: LONGEST - 1] + "…"


def _bar(one: Bar, x: float, y: float) -> str:
    kinds = " ".join(name for name, so in (("bar", True), ("cut", one.filtered_by is not None), ("came", one.is_chosen)) if so)
    number = f"{one.after:.2f}" if one.filtered_by is None else one.filtered_by
    longer = max(one.before, one.after)
    return (
        f'<g class="{kinds}"><title>{html(one.tooltip)}</title>'
        f'<text class="name" x="{x - GAP:g}" y="{y + 13:g}" text-anchor="end">{html(_shown(one.text))}</text>'
        f'<rect class="before" x="{x:g}" y="{y + 3:g}" width="{max(0.5, LONG * one.before):.1f}" height="7"/>'
        f'<rect class="after" x="{x:g}" y="{y + 11:g}" width="{max(0.0, LONG * one.after):.1f}" height="9"/>'
        f'<text x="{x + LONG * longer + 5:.1f}" y="{y + 16:g}" font-size="10">{number}</text></g>'
    )


FILTERED = (("before", "before", ""), ("after", "after", ""), ("after", "after, what came", "came"))
Legend = Sequence[tuple[str, str, str]]  # kind of bar, what it is, and whether it came


def bars(groups: Sequence[tuple[str, Sequence[Bar]]], legend: Legend = FILTERED) -> str:
    """Panels with their titles as an SVG, in lines as long as there is room: pale bars before, dark ones after."""
    if not groups or not all(found for _, found in groups):
        raise UsageError("bars", "there is nothing to draw: each group needs a bar")
    names = LETTER * max(len(_shown(one.text)) for _, found in groups for one in found) + GAP
    wide = max(names + LONG + 44, 8 * max(len(title) for title, _ in groups))
    across = max(1, int(WIDE // (wide + MARGIN)))
    parts, top = list[str](), float(MARGIN)
    for low in range(0, len(groups), across):
        line = groups[low : low + across]
        for at, (title, found) in enumerate(line):
            left = MARGIN + at * (wide + MARGIN)
            x, below = left + names, top + HEAD
            shown = html(visible(title.replace("\n", "⏎")).replace("␣", " ", 1))
            parts.append(f'<text class="head" x="{left:g}" y="{top + 14:g}">{shown}</text>')
            parts.append(f'<path class="base" d="M{x:g} {below:g}v{len(found) * ROW}"/>')
            parts += [_bar(one, x, below + number * ROW) for number, one in enumerate(found)]
        top += HEAD + max(len(found) for _, found in line) * ROW + MARGIN
    right, high = MARGIN + min(across, len(groups)) * (wide + MARGIN), top + 40
    x = float(MARGIN)
    for kind, told, group in legend:
        parts.append(f'<g class="{group}"><rect class="{kind}" x="{x:g}" y="{top + 8:g}" width="14" height="10"/></g>')
        parts.append(f'<text x="{x + 19:g}" y="{top + 17:g}">{told}</text>')
        x += 34 + LETTER * len(told)
    right = max(right, x)
    size = f'width="{right:g}" height="{high:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-bars" role="img" aria-label="what could have come" {size}'
            f' viewBox="0 0 {right:g} {high:g}">',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>{"".join(parts)}',
            "</svg>\n",
        ]
    )
