"""Small bar charts side by side as a self-contained SVG, such as next-token probabilities before and after filtering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

CHAR_WIDTH, MAX_CHARS = 7.4, 12  # of a label; the width is approximate
MAX_BAR_LENGTH, ROW_HEIGHT, TITLE_HEIGHT, MARGIN, GAP = 110, 26, 26, 12, 6
MAX_WIDTH = 680  # of a row of panels
STYLE = (
    ".weft-bars{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-bars .paper{fill:#fff}"
    ".weft-bars text{fill:#222}"
    ".weft-bars .before{fill:#9bb0c4}"
    ".weft-bars .after{fill:#1f6fb2}"
    ".weft-bars .chosen .after{fill:#1b7a34}"
    ".weft-bars .filtered text{fill-opacity:.6}"
    ".weft-bars .chosen .name,.weft-bars .head{font-weight:bold}"
    ".weft-bars .base{stroke:#888;stroke-opacity:.4}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-bars .paper{fill:#15181d}"
    ".weft-bars text{fill:#ddd}"
    ".weft-bars .before{fill:#5b6b7a}"
    ".weft-bars .after{fill:#6cb2f2}"
    ".weft-bars .chosen .after{fill:#69db7c}"
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
    flags = (("bar", True), ("filtered", bar.filtered_by is not None), ("chosen", bar.is_chosen))
    classes = " ".join(name for name, applies in flags if applies)
    number = f"{bar.after:.2f}" if bar.filtered_by is None else bar.filtered_by
    length = max(bar.before, bar.after)
    return (
        f'<g class="{classes}"><title>{html(bar.tooltip)}</title>'
        f'<text class="name" x="{x - GAP:g}" y="{y + 13:g}" text-anchor="end">{html(_label(bar.text))}</text>'
        f'<rect class="before" x="{x:g}" y="{y + 3:g}" width="{max(0.5, MAX_BAR_LENGTH * bar.before):.1f}" height="7"/>'
        f'<rect class="after" x="{x:g}" y="{y + 11:g}" width="{max(0.0, MAX_BAR_LENGTH * bar.after):.1f}" height="9"/>'
        f'<text x="{x + MAX_BAR_LENGTH * length + 5:.1f}" y="{y + 16:g}" font-size="10">{number}</text></g>'
    )


FILTER_LEGEND = (("before", "before", ""), ("after", "after", ""), ("after", "after, chosen", "chosen"))
Legend = Sequence[tuple[str, str, str]]  # CSS class of the bar, text, CSS class of its group


def bars(groups: Sequence[tuple[str, Sequence[Bar]]], legend: Legend = FILTER_LEGEND) -> str:
    """Titled panels as an SVG, wrapped into rows: pale bars before, dark bars after."""
    if not groups or not all(panel for _, panel in groups):
        raise UsageError("bars", "nothing to draw: each group needs a bar")
    label_width = CHAR_WIDTH * max(len(_label(bar.text)) for _, panel in groups for bar in panel) + GAP
    width = max(label_width + MAX_BAR_LENGTH + 44, 8 * max(len(title) for title, _ in groups))
    per_row = max(1, int(MAX_WIDTH // (width + MARGIN)))
    parts, top = list[str](), float(MARGIN)
    for start in range(0, len(groups), per_row):
        row = groups[start : start + per_row]
        for index, (title, panel) in enumerate(row):
            left = MARGIN + index * (width + MARGIN)
            x, bars_top = left + label_width, top + TITLE_HEIGHT
            heading = html(visible(title.replace("\n", "⏎")).replace("␣", " ", 1))
            parts.append(f'<text class="head" x="{left:g}" y="{top + 14:g}">{heading}</text>')
            parts.append(f'<path class="base" d="M{x:g} {bars_top:g}v{len(panel) * ROW_HEIGHT}"/>')
            parts += [_draw_bar(bar, x, bars_top + i * ROW_HEIGHT) for i, bar in enumerate(panel)]
        top += TITLE_HEIGHT + max(len(panel) for _, panel in row) * ROW_HEIGHT + MARGIN
    total_width, total_height = MARGIN + min(per_row, len(groups)) * (width + MARGIN), top + 40
    x = float(MARGIN)
    for bar_class, text, group_class in legend:
        parts.append(
            f'<g class="{group_class}"><rect class="{bar_class}" x="{x:g}" y="{top + 8:g}" width="14" height="10"/></g>'
        )
        parts.append(f'<text x="{x + 19:g}" y="{top + 17:g}">{text}</text>')
        x += 34 + CHAR_WIDTH * len(text)
    total_width = max(total_width, x)
    size = f'width="{total_width:g}" height="{total_height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-bars" role="img" aria-label="next-token probabilities" {size}'
            f' viewBox="0 0 {total_width:g} {total_height:g}">',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>{"".join(parts)}',
            "</svg>\n",
        ]
    )
