"""Explanations as one self-contained HTML file: figures, text, and an interactive panel for attention heads."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.explain.explanation import Explanation, Figure
from weft.plots.formatting import html
from weft.plots.heatmap import visible

HERE = Path(__file__).parent
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)  # of an SVG; texts in it are escaped
WIDTH = re.compile(r'<svg [^>]*?\bwidth="([0-9.]+)"')
HALF_WIDTH = 640  # pixels; wider figures have their own row
# nothing is ever loaded, whatever a text contains
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def _shown(token: str) -> str:
    return visible(token.replace("\n", "⏎"))


def _layer(one: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of a layer with one byte per weight, of its square root."""
    shades = (255 * np.sqrt(np.array(one["weights"]).clip(0, 1))).round().astype(np.uint8)
    axes = {name: [_shown(token["text"]) for token in one[name]] for name in ("rows", "columns")}
    weights = base64.b64encode(shades.tobytes()).decode("ascii")
    return {"component": one["component"], "layer": one["layer"], "heads": one["heads"], **axes, "weights": weights}


def _heads(view: Explanation) -> str:
    """The data for the script of the page."""
    if view.view != "attention":
        return ""
    data = json.dumps([_layer(one) for one in view.data["layers"]], ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" class="attention">{data}</script>'


def _is_wide(figure: Figure) -> bool:
    """Whether a figure needs the full width of the page; others are side by side."""
    width = WIDTH.search(figure.svg)
    return width is not None and float(width[1]) > HALF_WIDTH


def _figure(figure: Figure) -> str:
    svg = STYLE.sub("", figure.svg)
    wide = ' class="wide"' if _is_wide(figure) else ""
    return f'<figure{wide}><figcaption>{html(figure.caption)}</figcaption><div class="scroll">{svg}</div></figure>'


def _numbers(view: Explanation) -> str:
    """The text of the terminal: open if there is room beside a figure, or no figure, else folded."""
    if not view.lines:
        return ""
    narrow = sum(not _is_wide(figure) for figure in view.figures)
    opened = " open" if narrow % 2 or not view.figures else ""
    return f"<details{opened}><summary>Table</summary><pre>{html(chr(10).join(view.lines))}</pre></details>"


def _styles(views: Sequence[Explanation]) -> str:
    """The styles of all figures, each once."""
    styles = [style for view in views for figure in view.figures for style in STYLE.findall(figure.svg)]
    return "\n".join(dict.fromkeys(styles))


def _section(view: Explanation) -> str:
    guide = f'<p class="guide">{html(view.guide)}</p>' if view.guide and view.figures else ""
    figures = "\n".join(map(_figure, view.figures))
    content = f'<div class="views">\n{figures}\n{_numbers(view)}\n</div>'
    return f"<section><h2>{html(view.title)}</h2>\n{guide}\n{content}\n{_heads(view)}</section>"


def page(views: Sequence[Explanation], *, title: str = "") -> str:
    """The HTML page of several explanations; `title` is the explained text."""
    name = html(visible(title).replace("␣", " ") if title else ", ".join(view.view for view in views))
    css, script = (HERE / "page.css").read_text(encoding="utf-8"), (HERE / "page.js").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{name}</title>'
        f"<style>{css}\n{_styles(views)}</style>"
    )
    body = "\n".join(map(_section, views))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main><h1>{name}</h1>\n{body}\n</main>\n'
        f"<script>{script}</script></body></html>\n"
    )
