"""One self-contained HTML page for several explanations: figures, text, and an interactive panel for attention heads."""

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

ASSETS = Path(__file__).parent
SVG_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)  # the text of an SVG is escaped, so it has no other match
SVG_WIDTH = re.compile(r'<svg [^>]*?\bwidth="([0-9.]+)"')
HALF_WIDTH = 640  # pixels; wider figures have their own row
# the page loads nothing from the network, whatever the explained text contains
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def _visible_token(token: str) -> str:
    return visible(token.replace("\n", "⏎"))


def _layer_data(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The attention weights of a layer for page.js: one byte per weight, 255 times its square root."""
    pixels = (255 * np.sqrt(np.array(layer["weights"]).clip(0, 1))).round().astype(np.uint8)
    axes = {name: [_visible_token(token["text"]) for token in layer[name]] for name in ("rows", "columns")}
    weights = base64.b64encode(pixels.tobytes()).decode("ascii")
    return {"component": layer["component"], "layer": layer["layer"], "heads": layer["heads"], **axes, "weights": weights}


def _attention_data(view: Explanation) -> str:
    """The attention weights as JSON for page.js; empty for other views."""
    if view.view != "attention":
        return ""
    data = json.dumps([_layer_data(layer) for layer in view.data["layers"]], ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" class="attention">{data}</script>'


def _is_wide(figure: Figure) -> bool:
    """Whether a figure needs the full width of the page. Others are side by side."""
    width = SVG_WIDTH.search(figure.svg)
    return width is not None and float(width[1]) > HALF_WIDTH


def _figure(figure: Figure) -> str:
    svg = SVG_STYLE.sub("", figure.svg)
    wide = ' class="wide"' if _is_wide(figure) else ""
    return f'<figure{wide}><figcaption>{html(figure.caption)}</figcaption><div class="scroll">{svg}</div></figure>'


def _text(view: Explanation) -> str:
    """The terminal text, expanded if there is space next to a figure, or if there is no figure."""
    if not view.lines:
        return ""
    narrow = sum(not _is_wide(figure) for figure in view.figures)
    opened = " open" if narrow % 2 or not view.figures else ""
    return f"<details{opened}><summary>Table</summary><pre>{html(chr(10).join(view.lines))}</pre></details>"


def _styles(views: Sequence[Explanation]) -> str:
    """The styles of all figures without duplicates."""
    styles = [style for view in views for figure in view.figures for style in SVG_STYLE.findall(figure.svg)]
    return "\n".join(dict.fromkeys(styles))


def _section(view: Explanation) -> str:
    guide = f'<p class="guide">{html(view.guide)}</p>' if view.guide and view.figures else ""
    figures = "\n".join(map(_figure, view.figures))
    content = f'<div class="figures">\n{figures}\n{_text(view)}\n</div>'
    return f"<section><h2>{html(view.title)}</h2>\n{guide}\n{content}\n{_attention_data(view)}</section>"


def page(views: Sequence[Explanation], *, title: str = "") -> str:
    """The HTML page of several explanations; `title` is the explained text."""
    heading = html(visible(title).replace("␣", " ") if title else ", ".join(view.view for view in views))
    css, script = ((ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{heading}</title>'
        f"<style>{css}\n{_styles(views)}</style>"
    )
    body = "\n".join(map(_section, views))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main><h1>{heading}</h1>\n{body}\n</main>\n'
        f"<script>{script}</script></body></html>\n"
    )
