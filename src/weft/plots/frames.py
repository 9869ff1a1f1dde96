"""Attention over images and clips, and contributions of their parts, word by word, as self-contained SVGs.

Shapes: N words, T frames, H height, W width, h and w the height and width of the grid of attention weights.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.plots.heatmap import heading, number
from weft.plots.png import draw_bitmap, image_url

MARGIN, GAP, LINE = 12, 8, 16
PANEL, PANELS_PER_ROW = 112, 6  # longer side of a panel, in pixels
MAX_PIXELS = 224  # per side of an embedded image
STRIP, MAX_THUMBNAILS, ROW = 760, 12, 20  # width of a film strip, frames that are shown, height of a word
CHAR = 7.0  # width of a character, roughly
MAX_CHARS = 18  # of a word that is drawn; the tooltip has the whole word
DARKEST = 0.3  # brightness of a place without attention
FADED, COLOR, MAX_OPACITY = 0.5, (217, 72, 15), 0.9  # of images under contributions, and of the contributions
STYLE = (
    ".weft-frames{font:12px system-ui,sans-serif;max-width:100%;height:auto}"
    ".weft-frames .paper{fill:#fff}"
    ".weft-frames .ink{fill:#08306b}"
    ".weft-frames .line{stroke:#888;stroke-opacity:.3;fill:none}"
    ".weft-frames text{fill:#222}"
    ".weft-frames .note{font-size:10px}"
    "@media screen and (prefers-color-scheme:dark){"
    ".weft-frames .paper{fill:#15181d}"
    ".weft-frames .ink{fill:#9ecbff}"
    ".weft-frames text{fill:#ddd}"
    "}"
)


def enlarged(weights: np.ndarray, height: int, width: int) -> np.ndarray:
    """Weights (h, w) at the pixels of an image, (H, W): linear between the centers of the cells."""
    for axis, size in enumerate((height, width)):
        cells = weights.shape[axis]
        places = np.clip((np.arange(size) + 0.5) * cells / size - 0.5, 0, cells - 1)
        low = np.floor(places).astype(int)
        high = np.minimum(low + 1, cells - 1)
        part = (places - low).reshape((-1, 1) if axis == 0 else (1, -1))
        weights = np.take(weights, low, axis) * (1 - part) + np.take(weights, high, axis) * part
    return weights


def _thumbnail(image: np.ndarray) -> np.ndarray:
    """An image (H, W, C) in RGB, with pixels left out if it is large."""
    step = math.ceil(max(image.shape[:2]) / MAX_PIXELS)
    small = image[::step, ::step]
    return small if small.shape[-1] == 3 else np.repeat(small[..., :1], 3, axis=-1)


def _highlighted(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """An image that is dark where the weights (h, w) are small, relative to the largest."""
    shade = enlarged(weights / max(float(weights.max()), 1e-9), *image.shape[:2])
    return (image * (DARKEST + (1 - DARKEST) * shade[..., None])).round().astype(np.uint8)


def _short(word: str) -> str:
    return word if len(word) <= MAX_CHARS else word[: MAX_CHARS - 1] + "…"


def _svg(parts: Sequence[str], width: float, height: float, title: str) -> str:
    size = f'width="{math.ceil(width)}" height="{math.ceil(height)}"'
    box = f'viewBox="0 0 {math.ceil(width)} {math.ceil(height)}"'
    heading_text = f'<text x="{MARGIN}" y="{MARGIN + 12}" font-weight="bold">{html(title)}</text>' if title else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="weft-frames" role="img" aria-label="{html(title or "attention")}" '
        f'{size} {box}>\n<style>{STYLE}</style>\n<rect class="paper" {size} rx="6"/>{heading_text}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _title(title: str, width: float) -> str:
    """The end of a title that fits: paths differ at their end."""
    text, limit = heading(title), max(8, int((width - 2 * MARGIN) / CHAR))
    return text if len(text) <= limit else "…" + text[-limit + 1 :]


class _Panel(NamedTuple):
    """A picture with a label below it."""

    picture: np.ndarray
    label: str
    tooltip: str


def _panels(panels: Sequence[_Panel], *, title: str, note: str) -> str:
    """Pictures of one size in rows; `note` is their legend, of which the part after ";" is left out if there is no space."""
    scale = PANEL / max(panels[0].picture.shape[:2])
    height, width = (side * scale for side in panels[0].picture.shape[:2])
    columns = min(PANELS_PER_ROW, len(panels))
    top = MARGIN + (LINE + GAP if title else 0)
    parts = []
    for index, panel in enumerate(panels):
        x = MARGIN + index % columns * (PANEL + GAP) + (PANEL - width) / 2
        y = top + index // columns * (height + 2 * LINE + GAP)
        box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        tooltip = f"<title>{html(panel.tooltip)}</title>"
        parts.append(f'<image {box} preserveAspectRatio="none" href="{image_url(panel.picture)}">{tooltip}</image>')
        middle, label = number(x + width / 2), f"{html(_short(panel.label))}"
        parts.append(f'<text x="{middle}" y="{number(y + height + 14)}" text-anchor="middle">{label}</text>')
    rows = math.ceil(len(panels) / columns)
    total_width = max(2 * MARGIN + columns * (PANEL + GAP) - GAP, 320)
    bottom = top + rows * (height + 2 * LINE + GAP)
    parts.append(f'<text class="note" x="{MARGIN}" y="{number(bottom)}">{note if columns > 4 else note.split(";")[0]}</text>')
    return _svg(parts, total_width, bottom + MARGIN, _title(title, total_width))


def image_attention(image: np.ndarray, words: Sequence[str], weights: np.ndarray, *, title: str = "") -> str:
    """An image (H, W, C), uint8, and once more for each word, bright where the weights (N, h, w) are large."""
    if weights.ndim != 3 or len(weights) != len(words) or not len(words):
        raise UsageError("image_attention", f"weights of shape {weights.shape} for {len(words)} words")
    small = _thumbnail(image)
    panels = [_Panel(small, "", "the image")]
    for word, weight in zip(words, weights, strict=True):
        tooltip = f"{word}: at most {float(weight.max()):.3f} in one place"
        panels.append(_Panel(_highlighted(small, weight), word, tooltip))
    return _panels(panels, title=title, note="bright: more attention; the brightest place of each panel has the most")


def _colored(image: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """A faded image in gray, with color where the heat (h, w), from 0 to 1, is large."""
    faded = 255 - FADED * (255 - image.mean(-1, keepdims=True))
    opacity = MAX_OPACITY * enlarged(heat, *image.shape[:2])[..., None]
    colored: np.ndarray = faded * (1 - opacity) + np.array(COLOR) * opacity
    return colored.round().astype(np.uint8)


def _heat(values: np.ndarray) -> np.ndarray:
    """Contributions as numbers from 0 to 1: the square root, relative to the largest of all words; 0 for negative ones."""
    heat: np.ndarray = np.sqrt(np.clip(values, 0, None) / max(float(values.max()), 1e-9))
    return heat


def image_attribution(image: np.ndarray, words: Sequence[str], values: np.ndarray, *, title: str = "") -> str:
    """An image (H, W, C), uint8, and once more for each word, colored where the contributions (N, h, w) to it are large."""
    if values.ndim != 3 or len(values) != len(words) or not len(words):
        raise UsageError("image_attribution", f"contributions of shape {values.shape} for {len(words)} words")
    small, heat = _thumbnail(image), _heat(values)
    panels = [_Panel(small, "", "the image")]
    for word, value, shade in zip(words, values, heat, strict=True):
        panels.append(_Panel(_colored(small, shade), word, f"{word}: {value.sum():+.3f} in total"))
    return _panels(
        panels, title=title, note="orange: raises the score of the word; the same color is the same amount in all panels"
    )


def clip_attribution(frames: np.ndarray, words: Sequence[str], values: np.ndarray, *, title: str = "") -> str:
    """Frames (T, H, W, C), uint8, in order, and a row of them for each word, colored where the contributions (N, T, h, w) to it
    are large."""
    if values.ndim != 4 or values.shape[:2] != (len(words), len(frames)) or not len(words):
        problem = f"contributions of shape {values.shape} for {len(words)} words and {len(frames)} frames"
        raise UsageError("clip_attribution", problem)
    left, top = MARGIN + CHAR * max(len(_short(word)) for word in words) + GAP, MARGIN + (LINE + GAP if title else 0)
    shown = np.unique(((np.arange(MAX_THUMBNAILS) + 0.5) * len(frames) / MAX_THUMBNAILS).astype(int)).tolist()
    cell = min(STRIP / len(shown), PANEL)
    height, heat = (cell - 2) * frames.shape[1] / frames.shape[2], _heat(values)
    parts = []
    for row, word in enumerate(["", *words]):
        y = top + row * (height + 2) + (LINE if row else 0)
        parts.append(f'<text x="{number(left - GAP)}" y="{number(y + height / 2)}" dy=".35em" text-anchor="end">')
        parts[-1] += f"{html(_short(word))}</text>"
        for column, frame in enumerate(shown):
            small, x = _thumbnail(frames[frame]), left + column * cell + 1
            picture = small if not row else _colored(small, heat[row - 1, frame])
            total = f": {values[row - 1, frame].sum():+.3f}" if row else ""
            box = f'x="{number(x)}" y="{number(y)}" width="{number(cell - 2)}" height="{number(height)}"'
            tooltip = f"<title>{html(word)} frame {frame + 1}{total}</title>"
            parts.append(f'<image {box} preserveAspectRatio="none" href="{image_url(picture)}">{tooltip}</image>')
            if not row:
                middle, below = number(x + cell / 2 - 1), number(y + height + 12)
                parts.append(f'<text class="note" x="{middle}" y="{below}" text-anchor="middle">{frame + 1}</text>')
    bottom = top + (len(words) + 1) * (height + 2) + 2 * LINE
    note = "orange: raises the score of the word; the same color is the same amount in all frames"
    parts.append(f'<text class="note" x="{number(left)}" y="{number(bottom)}">{note}</text>')
    width = max(left + len(shown) * cell, left + CHAR * 60) + MARGIN
    return _svg(parts, width, bottom + MARGIN, _title(title, width))


def film_strip(
    frames: np.ndarray, words: Sequence[str], weights: np.ndarray, *, title: str = "", note: str = "darker: more attention"
) -> str:
    """Frames (T, H, W, C), uint8, in order, and below them the weights (N, T) of each word; `note` is their legend."""
    if weights.shape != (len(words), len(frames)) or not len(words):
        raise UsageError("film_strip", f"weights of shape {weights.shape} for {len(words)} words and {len(frames)} frames")
    left = MARGIN + CHAR * max(len(_short(word)) for word in words) + GAP
    top = MARGIN + (LINE + GAP if title else 0)
    shown = np.unique(((np.arange(MAX_THUMBNAILS) + 0.5) * len(frames) / MAX_THUMBNAILS).astype(int))
    cell = STRIP / len(shown)
    aspect = frames.shape[1] / frames.shape[2]
    height = min((cell - 2) * aspect, 96.0)
    parts = []
    for index, frame in enumerate(shown.tolist()):
        box = f'x="{number(left + index * cell + 1)}" y="{top}" width="{number(cell - 2)}" height="{number(height)}"'
        parts.append(f'<image {box} href="{image_url(_thumbnail(frames[frame]))}"><title>frame {frame + 1}</title></image>')
        middle = number(left + (index + 0.5) * cell)
        parts.append(f'<text class="note" x="{middle}" y="{number(top + height + 12)}" text-anchor="middle">{frame + 1}</text>')
    y = top + height + LINE + 2
    box = f'x="{number(left)}" y="{number(y)}" width="{STRIP}" height="{ROW * len(words)}"'
    shades = np.sqrt(np.clip(weights / max(float(weights.max()), 1e-9), 0, 1))
    parts.append(draw_bitmap(shades, f"strip-{zlib.crc32(shades.tobytes()):x}", box))
    parts.append(f'<rect class="line" {box}/>')
    for index, word in enumerate(words):
        middle = number(y + (index + 0.5) * ROW)
        best = int(weights[index].argmax()) + 1
        tooltip = f"<title>{html(word)}: most at frame {best}</title>"
        parts.append(
            f'<text x="{number(left - GAP)}" y="{middle}" dy=".35em" text-anchor="end">{html(_short(word))}{tooltip}</text>'
        )
        if index:
            parts.append(f'<path class="line" d="M{number(left)} {number(y + index * ROW)}h{STRIP}"/>')
    bottom = y + ROW * len(words) + LINE
    parts.append(f'<text class="note" x="{number(left)}" y="{number(bottom)}">{html(note)}</text>')
    width = left + STRIP + MARGIN
    return _svg(parts, width, bottom + MARGIN, _title(title, width))
