"""Small bar charts side by side as a self-contained SVG, such as next-token probabilities before and after filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

CHAR_WIDTH, MAX_CHARS = 7.4, 12  # of a label
MAX_BAR, ROW, HEAD, MARGIN, GAP = 110, 26, 26, 12, 6  # longest bar, height of a token, of a panel title, outer margin
MAX_WIDTH = 680  # of a line of panels
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
    tooltip: str
    filtered_by: str | None = None  # the filter that removed it
    is_chosen: bool = False


def _label(text: str) -> str:
    label = visible(text.replace("\n", "⏎"))
    return label if len(label) <= MAX_CHARS else label[: MAX_CHARS - 1] + "…"


def _draw_bar(bar: Bar, x: float, y: float) -> str:
    flags = (("bar", True), ("cut", bar.filtered_by is not None), ("came", bar.is_chosen))
    classes = " ".join(name for name, applies in flags if applies)
    number = f"{bar.after:.2f}" if bar.filtered_by is None else bar.filtered_by
    length = max(bar.before, bar.after)
    return (
        f'<g class="{classes}"><title>{html(bar.tooltip)}</title>'
        f'<text class="name" x="{x - GAP:g}" y="{y + 13:g}" text-anchor="end">{html(_label(bar.text))}</text>'
        f'<rect class="before" x="{x:g}" y="{y + 3:g}" width="{max(0.5, MAX_BAR * bar.before):.1f}" height="7"/>'
        f'<rect class="after" x="{x:g}" y="{y + 11:g}" width="{max(0.0, MAX_BAR * bar.after):.1f}" height="9"/>'
        f'<text x="{x + MAX_BAR * length + 5:.1f}" y="{y + 16:g}" font-size="10">{number}</text></g>'
    )


FILTERED = (("before", "before", ""), ("after", "after", ""), ("after", "after, chosen", "came"))
Legend = Sequence[tuple[str, str, str]]  # class of the bar, text, class of the group


def bars(groups: Sequence[tuple[str, Sequence[Bar]]], legend: Legend = FILTERED) -> str:
    """Titled panels as an SVG, wrapped into lines: pale bars before, dark bars after."""
    if not groups or not all(panel for _, panel in groups):
        raise UsageError("bars", "nothing to draw: each group needs a bar")
    names = CHAR_WIDTH * max(len(_label(bar.text)) for _, panel in groups for bar in panel) + GAP
    width = max(names + MAX_BAR + 44, 8 * max(len(title) for title, _ in groups))
    per_line = max(1, int(MAX_WIDTH // (width + MARGIN)))
    parts, top = list[str](), float(MARGIN)
    for low in range(0, len(groups), per_line):
        line = groups[low : low + per_line]
        for index, (title, panel) in enumerate(line):
            left = MARGIN + index * (width + MARGIN)
            x, below = left + names, top + HEAD
            heading = html(visible(title.replace("\n", "⏎")).replace("␣", " ", 1))
            parts.append(f'<text class="head" x="{left:g}" y="{top + 14:g}">{heading}</text>')
            parts.append(f'<path class="base" d="M{x:g} {below:g}v{len(panel) * ROW}"/>')
            parts += [_draw_bar(bar, x, below + number * ROW) for number, bar in enumerate(panel)]
        top += HEAD + max(len(panel) for _, panel in line) * ROW + MARGIN
    right, high = MARGIN + min(per_line, len(groups)) * (width + MARGIN), top + 40
    x = float(MARGIN)
    for kind, text, group in legend:
        parts.append(f'<g class="{group}"><rect class="{kind}" x="{x:g}" y="{top + 8:g}" width="14" height="10"/></g>')
        parts.append(f'<text x="{x + 19:g}" y="{top + 17:g}">{text}</text>')
        x += 34 + CHAR_WIDTH * len(text)
    right = max(right, x)
    size = f'width="{right:g}" height="{high:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-bars" role="img" aria-label="next-token probabilities" {size}'
            f' viewBox="0 0 {right:g} {high:g}">',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>{"".join(parts)}',
            "</svg>\n",
        ]
    )
