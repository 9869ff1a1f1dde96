"""A search as a self-contained SVG: a column a step, what was continued joined to what it became, what was dropped paler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

HIGH, SPACE, BETWEEN, MARGIN, HEAD = 34, 8, 38, 12, 24  # of a box, between boxes, between columns, around all, above all
LETTER, NARROW, LONGEST = 7.6, 52, 18
LEGEND = 26
# kinds of nodes, in the order of the legend
KINDS = {
    "best": "on the way to the best",
    "kept": "went on",
    "ended": "ended",
    "limit": "reached the limit of tokens",
    "cut": "dropped: others were better",
    "late": "dropped: an end that comes too low to count",
    "banned": "not allowed",
    "hopeless": "given up: can't beat what has ended",
}
STYLE = (
    ".weft-tree{font:12px system-ui,sans-serif;height:auto}"
    ".weft-tree .paper{fill:#fff}"
    ".weft-tree text{fill:#222}"
    ".weft-tree .edge{fill:none;stroke:#999;stroke-width:1.2}"
    ".weft-tree .box{fill:#f4f6f8;stroke:#9aa4af}"
    ".weft-tree .best .box{fill:#d8f0de;stroke:#1b7a34;stroke-width:2}"
    ".weft-tree .edge.best{stroke:#1b7a34;stroke-width:2.6}"
    ".weft-tree .ended .box,.weft-tree .limit .box{fill:#dbe9f9;stroke:#1864ab}"
    ".weft-tree .cut .box,.weft-tree .late .box{fill:none;stroke-dasharray:3 3}"
    ".weft-tree .hopeless .box{fill:#fdeedc;stroke:#b06a10}"
    ".weft-tree .banned .box{fill:none;stroke:#b8323a;stroke-dasharray:3 3}"
    ".weft-tree .banned text{text-decoration:line-through}"
    ".weft-tree .cut text,.weft-tree .late text,.weft-tree .banned text{fill-opacity:.6}"
    ".weft-tree .late .box{stroke:#1864ab}"
    ".weft-tree .edge.cut,.weft-tree .edge.late,.weft-tree .edge.banned{stroke-opacity:.5;stroke-dasharray:3 3}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-tree .paper{fill:#15181d}"
    ".weft-tree text{fill:#ddd}"
    ".weft-tree .box{fill:#1f242b;stroke:#6b7580}"
    ".weft-tree .best .box{fill:#173d22;stroke:#69db7c}"
    ".weft-tree .edge.best{stroke:#69db7c}"
    ".weft-tree .ended .box,.weft-tree .limit .box{fill:#16324f;stroke:#6cb2f2}"
    ".weft-tree .hopeless .box{fill:#3d2b12;stroke:#f5a35c}"
    ".weft-tree .banned .box{stroke:#f28b8b}"
    ".weft-tree .late .box{stroke:#6cb2f2}"
    "}"
)


class Node(NamedTuple):
    """A hypothesis: its last token, and the one that it continues."""

    parent: int | None  # its number among the nodes, which is smaller; None at the root
    text: str
    number: str  # under the text: its score
    kind: str  # of KINDS
    tooltip: str  # for the pointer


class _Place(NamedTuple):
    column: int
    row: int


def _placed(nodes: Sequence[Node]) -> list[_Place]:
    """Children stand in the order of their parents, and those of one parent as they come: so no two edges cross."""
    columns: list[list[int]] = []
    depth = list[int]()
    for at, node in enumerate(nodes):
        depth.append(0 if node.parent is None else depth[node.parent] + 1)
        while len(columns) <= depth[at]:
            columns.append([])
        columns[depth[at]].append(at)
    rows = dict[int, int]()
    for column in columns:
        ordered = sorted(column, key=lambda at: (rows.get(-1 if nodes[at].parent is None else nodes[at].parent or 0, 0), at))
        rows |= {at: row for row, at in enumerate(ordered)}
    return [_Place(depth[at], rows[at]) for at in range(len(nodes))]


def _shown(text: str) -> str:
    found = visible(text.replace("\n", "⏎"))
    return found if len(found) <= LONGEST else found[: LONGEST - 1] + "…"


def _box(node: Node, x: float, y: float, width: float) -> str:
    middle = x + width / 2
    return (
        f'<g class="{node.kind}"><title>{html(node.tooltip)}</title>'
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{HIGH}" rx="5"/>'
        f'<text x="{middle:g}" y="{y + 14:g}" font-weight="bold">{html(_shown(node.text))}</text>'
        f'<text x="{middle:g}" y="{y + 28:g}" font-size="11">{html(node.number)}</text></g>'
    )


def _edge(node: Node, start: tuple[float, float], stop: tuple[float, float]) -> str:
    bend = (stop[0] - start[0]) / 2
    curve = (
        f"M{start[0]:g} {start[1]:g}c{bend:g} 0 {bend:g} {stop[1] - start[1]:g} {stop[0] - start[0]:g} {stop[1] - start[1]:g}"
    )
    return f'<path class="edge {node.kind}" d="{curve}"/>'


def _legend(kinds: Sequence[str], y: float) -> tuple[str, float]:
    """The kinds that occur, one below the other."""
    parts = []
    for at, kind in enumerate(kinds):
        top = y + at * LEGEND
        parts.append(
            f'<g class="{kind}"><rect class="box" x="{MARGIN}" y="{top:g}" width="34" height="18" rx="5"/></g>'
            f'<text x="{MARGIN + 44}" y="{top + 9:g}" dy=".35em">{html(KINDS[kind])}</text>'
        )
    return "".join(parts), len(kinds) * LEGEND


def tree(nodes: Sequence[Node], *, heads: str = "step {}") -> str:
    """The nodes as an SVG; `heads` names a column by its number from 1."""
    wrong = [at for at, node in enumerate(nodes) if node.kind not in KINDS or (node.parent is not None and node.parent >= at)]
    if not nodes or wrong:
        raise UsageError("tree", f"there are {len(nodes)} nodes, and {len(wrong)} of an unknown kind or before their parents")
    places = _placed(nodes)
    count = 1 + max(place.column for place in places)
    widths = [
        max(
            NARROW,
            14 + LETTER * max(len(_shown(node.text)) for node, place in zip(nodes, places, strict=True) if place.column == at),
        )
        for at in range(count)
    ]
    lefts = [MARGIN + sum(widths[:at]) + BETWEEN * at for at in range(count)]
    tops = [MARGIN + HEAD + place.row * (HIGH + SPACE) for place in places]
    boxes, edges = list[str](), list[str]()
    for node, place, top in zip(nodes, places, tops, strict=True):
        boxes.append(_box(node, lefts[place.column], top, widths[place.column]))
        if node.parent is not None:
            before = places[node.parent].column
            start = lefts[before] + widths[before], tops[node.parent] + HIGH / 2
            edges.append(_edge(node, start, (lefts[place.column], top + HIGH / 2)))
    named = [f'<text x="{lefts[at] + widths[at] / 2:g}" y="{MARGIN + 10}">{heads.format(at)}</text>' for at in range(1, count)]
    bottom = max(tops) + HIGH + 2 * SPACE
    legend, high = _legend([kind for kind in KINDS if any(node.kind == kind for node in nodes)], bottom)
    wide, tall = max(lefts[-1] + widths[-1], 330) + MARGIN, bottom + high + MARGIN
    size = f'width="{wide:g}" height="{tall:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-tree" role="img" aria-label="tree of a search" {size}'
            f' viewBox="0 0 {wide:g} {tall:g}">',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>{"".join(edges)}',
            f'<g text-anchor="middle">{"".join(boxes)}<g font-style="italic">{"".join(named)}</g></g>{legend}',
            "</svg>\n",
        ]
    )
