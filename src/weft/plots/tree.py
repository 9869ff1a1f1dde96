"""A beam search as a self-contained SVG tree: a column per step, hypotheses linked to their parents, dropped ones paler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import visible

BOX_HEIGHT, BOX_SPACE, COLUMN_SPACE, MARGIN, TITLE_HEIGHT = 34, 8, 38, 12, 24
CHAR_WIDTH, MIN_BOX_WIDTH, MAX_CHARS = 7.6, 52, 18
LEGEND_LINE = 26
# kinds of nodes, in the order of the legend
KINDS = {
    "best": "leads to the best output",
    "kept": "continued",
    "ended": "finished",
    "limit": "reached the maximum length",
    "cut": "dropped: below the beam",
    "late": "dropped: finished, but ranked too low",
    "banned": "not allowed",
    "hopeless": "pruned: cannot beat a finished hypothesis",
    "stopped": "pruned: enough hypotheses have finished",
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
    ".weft-tree :is(.hopeless,.stopped) .box{fill:#fdeedc;stroke:#b06a10}"
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
    ".weft-tree :is(.hopeless,.stopped) .box{fill:#3d2b12;stroke:#f5a35c}"
    ".weft-tree .banned .box{stroke:#f28b8b}"
    ".weft-tree .late .box{stroke:#6cb2f2}"
    "}"
)


class Node(NamedTuple):
    """A hypothesis: its last token, and its parent."""

    parent: int | None  # a smaller index; None for the root
    text: str
    score: str  # below the text
    kind: str  # of KINDS
    tooltip: str


class _Cell(NamedTuple):
    column: int
    row: int


def _layout(nodes: Sequence[Node]) -> list[_Cell]:
    """Children in the order of their parents, siblings in order of occurrence, so that edges do not cross."""
    columns: list[list[int]] = []
    depth = list[int]()
    for index, node in enumerate(nodes):
        depth.append(0 if node.parent is None else depth[node.parent] + 1)
        while len(columns) <= depth[index]:
            columns.append([])
        columns[depth[index]].append(index)
    rows = dict[int, int]()
    for column in columns:
        parent_rows = {index: 0 if (parent := nodes[index].parent) is None else rows[parent] for index in column}
        ordered = sorted(column, key=lambda index: (parent_rows[index], index))
        rows |= {index: row for row, index in enumerate(ordered)}
    return [_Cell(depth[index], rows[index]) for index in range(len(nodes))]


def _label(text: str) -> str:
    label = visible(text.replace("\n", "⏎"))
    return label if len(label) <= MAX_CHARS else label[: MAX_CHARS - 1] + "…"


def _box(node: Node, x: float, y: float, width: float) -> str:
    middle = x + width / 2
    return (
        f'<g class="{node.kind}"><title>{html(node.tooltip)}</title>'
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{BOX_HEIGHT}" rx="5"/>'
        f'<text x="{middle:g}" y="{y + 14:g}" font-weight="bold">{html(_label(node.text))}</text>'
        f'<text x="{middle:g}" y="{y + 28:g}" font-size="11">{html(node.score)}</text></g>'
    )


def _edge(node: Node, start: tuple[float, float], stop: tuple[float, float]) -> str:
    bend = (stop[0] - start[0]) / 2
    curve = (
        f"M{start[0]:g} {start[1]:g}c{bend:g} 0 {bend:g} {stop[1] - start[1]:g} {stop[0] - start[0]:g} {stop[1] - start[1]:g}"
    )
    return f'<path class="edge {node.kind}" d="{curve}"/>'


def _legend(kinds: Sequence[str], y: float) -> tuple[str, float]:
    """The kinds that occur, one per line, and the height."""
    parts = []
    for index, kind in enumerate(kinds):
        top = y + index * LEGEND_LINE
        parts.append(
            f'<g class="{kind}"><rect class="box" x="{MARGIN}" y="{top:g}" width="34" height="18" rx="5"/></g>'
            f'<text x="{MARGIN + 44}" y="{top + 9:g}" dy=".35em">{html(KINDS[kind])}</text>'
        )
    return "".join(parts), len(kinds) * LEGEND_LINE


def tree(nodes: Sequence[Node], *, column_title: str = "step {}") -> str:
    """The nodes as an SVG; `column_title` is formatted with the number of the column, from 1."""
    invalid = [i for i, node in enumerate(nodes) if node.kind not in KINDS or (node.parent is not None and node.parent >= i)]
    if not nodes or invalid:
        raise UsageError("tree", f"{len(invalid)} of {len(nodes)} nodes have an unknown kind or precede their parent")
    cells = _layout(nodes)
    num_columns = 1 + max(cell.column for cell in cells)
    widths = [
        max(
            MIN_BOX_WIDTH,
            14
            + CHAR_WIDTH
            * max(len(_label(node.text)) for node, cell in zip(nodes, cells, strict=True) if cell.column == column),
        )
        for column in range(num_columns)
    ]
    lefts = [MARGIN + sum(widths[:column]) + COLUMN_SPACE * column for column in range(num_columns)]
    tops = [MARGIN + TITLE_HEIGHT + cell.row * (BOX_HEIGHT + BOX_SPACE) for cell in cells]
    boxes, edges = list[str](), list[str]()
    for node, cell, top in zip(nodes, cells, tops, strict=True):
        boxes.append(_box(node, lefts[cell.column], top, widths[cell.column]))
        if node.parent is not None:
            parent_column = cells[node.parent].column
            start = lefts[parent_column] + widths[parent_column], tops[node.parent] + BOX_HEIGHT / 2
            edges.append(_edge(node, start, (lefts[cell.column], top + BOX_HEIGHT / 2)))
    titles = [
        f'<text x="{lefts[i] + widths[i] / 2:g}" y="{MARGIN + 10}">{column_title.format(i)}</text>'
        for i in range(1, num_columns)
    ]
    bottom = max(tops) + BOX_HEIGHT + 2 * BOX_SPACE
    legend, legend_height = _legend([kind for kind in KINDS if any(node.kind == kind for node in nodes)], bottom)
    width, height = max(lefts[-1] + widths[-1], 330) + MARGIN, bottom + legend_height + MARGIN
    size = f'width="{width:g}" height="{height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-tree" role="img" aria-label="beam-search tree" {size}'
            f' viewBox="0 0 {width:g} {height:g}">',
            f'<style>{STYLE}</style><rect class="paper" {size} rx="6"/>{"".join(edges)}',
            f'<g text-anchor="middle">{"".join(boxes)}<g font-style="italic">{"".join(titles)}</g></g>{legend}',
            "</svg>\n",
        ]
    )
