"""A map of words as one HTML file: pan, zoom, search, and the neighbors of a word. It loads nothing from elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray


def _asset(name: str) -> str:
    return files("weft.plots").joinpath(name).read_text(encoding="utf-8")


def word_map(
    words: Sequence[str], points: NDArray[np.float64], neighbors: Sequence[Sequence[tuple[int, float]]], *, title: str
) -> str:
    """The page of N words at points (N, 2); `neighbors` has for each word the indices of others, and their cosines."""
    scaled = points - points.mean(0) if len(points) else points
    scaled = scaled / (np.abs(scaled).max() or 1.0 if len(points) else 1.0)
    data = {
        "words": list(words),
        "x": [round(value, 4) for value in scaled[:, 0].tolist()],
        "y": [round(value, 4) for value in scaled[:, 1].tolist()],
        "neighbors": [[[index, round(cosine, 3)] for index, cosine in row] for row in neighbors],
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    name = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{name}</title>\n'
        f"<style>{_asset('word_map.css')}</style>\n"
        f'<header><h1>{name}</h1><label>Find <input type="search" placeholder="word"></label>'
        f"<output>Click a word for its neighbors; drag to move, scroll to zoom.</output></header>\n<canvas></canvas>\n"
        f'<script type="application/json" id="data">{text}</script>\n\n'
        f"<script>{_asset('word_map.js')}</script>\n</html>\n"
    )


SIDE, MARGIN, COLORS = 640, 50, ("#1f4e9c", "#b4230a")


def word_map_svg(words: Sequence[str], points: NDArray[np.float64], *, title: str, groups: Sequence[int] = ()) -> str:
    """The same map as a picture; `groups` has 0 or 1 for each word, which selects its color."""
    low, high = points.min(0), points.max(0)
    scaled = (points - low) / np.where(high > low, high - low, 1.0) * (SIDE - 2 * MARGIN) + MARGIN
    parts = []
    for index, (word, (x, y)) in enumerate(zip(words, scaled.tolist(), strict=True)):
        color = COLORS[groups[index] if groups else 0]
        parts.append(
            f'<circle cx="{x:.1f}" cy="{SIDE - y:.1f}" r="2.5" fill="{color}"/>'
            f'<text x="{x + 5:.1f}" y="{SIDE - y + 4:.1f}" fill="{color}">{html.escape(word)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12"><title>{html.escape(title)}</title>'
        f'<rect width="{SIDE}" height="{SIDE}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )
