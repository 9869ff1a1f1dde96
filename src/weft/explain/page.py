"""Views as one HTML file that asks nothing of anybody: pictures, the same in words, and heads to look at one by one."""

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
STYLED = re.compile(r"<style>(.*?)</style>", re.DOTALL)  # of a drawing; no text in it can spell this
WIDTH = re.compile(r'<svg [^>]*?\bwidth="([0-9.]+)"')
HALF = 640  # pixels: what is wider has a row of its own
# no address is ever asked, whatever a text may hold
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def _shown(token: str) -> str:
    return visible(token.replace("\n", "⏎"))


def _layer(one: Mapping[str, Any]) -> dict[str, Any]:
    """A layer of attention as small as it can be drawn from: a byte a weight, of its square root."""
    shades = (255 * np.sqrt(np.array(one["weights"]).clip(0, 1))).round().astype(np.uint8)
    axes = {name: [_shown(token["text"]) for token in one[name]] for name in ("rows", "columns")}
    weights = base64.b64encode(shades.tobytes()).decode("ascii")
    return {"part": one["part"], "layer": one["layer"], "heads": one["heads"], **axes, "weights": weights}


def _heads(view: Explanation) -> str:
    """What the page's script reads, so that any head can be looked at."""
    if view.view != "attention":
        return ""
    data = json.dumps([_layer(one) for one in view.data["layers"]], ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" class="attention">{data}</script>'


def _is_wide(picture: Figure) -> bool:
    """Whether a picture needs the width of the page; others stand two in a row."""
    width = WIDTH.search(picture.svg)
    return width is not None and float(width[1]) > HALF


def _figure(figure: Figure) -> str:
    drawn = STYLED.sub("", figure.svg)
    wide = ' class="wide"' if _is_wide(figure) else ""
    return f'<figure{wide}><figcaption>{html(figure.caption)}</figcaption><div class="scroll">{drawn}</div></figure>'


def _numbers(view: Explanation) -> str:
    """What a terminal shows: open where it stands beside a picture, or there is none, else folded."""
    if not view.lines:
        return ""
    narrow = sum(not _is_wide(picture) for picture in view.figures)
    opened = " open" if narrow % 2 or not view.figures else ""
    return f"<details{opened}><summary>Numbers</summary><pre>{html(chr(10).join(view.lines))}</pre></details>"


def _styles(views: Sequence[Explanation]) -> str:
    """What the drawings look like, said once: those of one kind share it."""
    found = [style for view in views for picture in view.figures for style in STYLED.findall(picture.svg)]
    return "\n".join(dict.fromkeys(found))


def _section(view: Explanation) -> str:
    guide = f'<p class="guide">{html(view.guide)}</p>' if view.guide and view.figures else ""
    figures = "\n".join(map(_figure, view.figures))
    shown = f'<div class="views">\n{figures}\n{_numbers(view)}\n</div>'
    return f"<section><h2>{html(view.title)}</h2>\n{guide}\n{shown}\n{_heads(view)}</section>"


def page(views: Sequence[Explanation], *, title: str = "") -> str:
    """The views as an HTML file; `title` is what was explained."""
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
