"""Bitmaps inside an SVG: a PNG mask for the ink takes one byte per cell, a shape per cell takes about a hundred."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels: np.ndarray) -> bytes:
    """uint8 (T, S) as a grayscale PNG, (T, S, 3) as one in RGB."""
    color_type = 0 if pixels.ndim == 2 else 2
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, color_type, 0, 0, 0)
    filter_types = np.zeros((len(pixels), 1), np.uint8)  # 0: rows are not filtered
    rows = np.concatenate([filter_types, pixels.reshape(len(pixels), -1)], axis=1).tobytes()
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")


def image_url(pixels: np.ndarray) -> str:
    """A PNG as an address that contains it."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode('ascii')}"


def draw_bitmap(shades: np.ndarray, key: str, box: str) -> str:
    """Shades (T, S) from 0 to 1 as SVG elements that fill the box (x, y, width, height) with ink; `key` is the mask ID."""
    source = image_url((255 * shades).round().astype(np.uint8))
    image = f'<image {box} preserveAspectRatio="none" style="image-rendering:pixelated" href="{source}"/>'
    return f'<mask id="{key}">{image}</mask><rect class="ink" {box} mask="url(#{key})"/>'
