"""A small picture inside a drawing: a byte a cell, which lets ink through. A cell that were a shape of its own would take a
hundred bytes."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(grey: np.ndarray) -> bytes:
    """uint8 (T, S) as a PNG of greys."""
    head = struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 8, 0, 0, 0, 0)
    rows = np.concatenate([np.zeros((len(grey), 1), np.uint8), grey], axis=1).tobytes()  # each row unfiltered
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")


def inked(shades: np.ndarray, key: str, box: str) -> str:
    """Shades (T, S) from 0 to 1 as SVG that fills the box, x, y, width and height, with ink; `key` is the mask's own name."""
    source = base64.b64encode(png((255 * shades).round().astype(np.uint8))).decode("ascii")
    image = f'<image {box} preserveAspectRatio="none" style="image-rendering:pixelated" href="data:image/png;base64,{source}"/>'
    return f'<mask id="{key}">{image}</mask><rect class="ink" {box} mask="url(#{key})"/>'
