"""Small images and clips for tests."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from weft.errors import DataError
from weft.media.files import MediaFile


def gradient(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """A smooth image: formats that lose precision change it little. Uint8 (H, W, C)."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [255 * y / max(1, height - 1), 255 * x / max(1, width - 1), 40 + 20 * seed + 0 * x]
    return np.stack(planes[:channels], -1).round().astype(np.uint8)


def encoded(image: np.ndarray | Image.Image, format_name: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    picture.save(buffer, format_name, **options)
    return buffer.getvalue()


def clip(format_name: str, codec: str, *, frames: int = 12, pix_fmt: str = "yuv420p", faststart: bool = False) -> bytes:
    """A clip of 32 x 48 pixels and 25 frames per second; frame i has the brightness 20 i. `faststart`: the index comes first."""
    options = {"movflags": "faststart"} if faststart else {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip"
        with av.open(path, "w", format=format_name, options=options) as container:
            stream = container.add_stream(codec, rate=25)
            stream.height, stream.width, stream.pix_fmt = 32, 48, pix_fmt
            for index in range(frames):
                image = np.full((32, 48, 3), 20 * index % 256, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        return path.read_bytes()


def animation(format_name: str, *, frames: int = 5, duration: int = 40, **options: Any) -> bytes:
    """Frame i of 32 x 48 pixels has the brightness 20 i, and one pixel that differs."""
    images = []
    for index in range(frames):
        pixels = np.full((32, 48, 3), 20 * index, np.uint8)
        pixels[0, index] = 255
        images.append(Image.fromarray(pixels))
    return encoded(images[0], format_name, save_all=True, append_images=images[1:], duration=duration, **options)


def media(path: Path, content: bytes, name: str = "file") -> MediaFile:
    (path / name).write_bytes(content)
    return MediaFile(path / name)


def problem_of(read: Any) -> str:
    """The text of the DataError that a function raises, without the directory of the file; '' if it raises none."""
    try:
        read()
    except DataError as error:
        location = error.where.rsplit("/", 1)[-1]
        return f"{location}: {error.problem}" + (f"; {error.fix}" if error.fix else "")
    return ""


def mutants(content: bytes, count: int, seed: int = 0) -> list[bytes]:
    """Copies with flipped bits, changed bytes, removed, repeated and missing parts; half of them close to the start."""
    rng = np.random.default_rng(seed)
    results = []
    for number in range(count):
        mutant = bytearray(content)
        limit = min(len(mutant), 200) if number % 2 else len(mutant)
        for _ in range(rng.integers(1, 6)):
            mutant[rng.integers(limit)] ^= 1 << int(rng.integers(8))
        place, length = int(rng.integers(len(mutant))), int(rng.integers(1, 64))
        if number % 5 == 0:
            del mutant[place : place + length]
        elif number % 5 == 1:
            mutant[place:place] = mutant[place : place + length]
        elif number % 5 == 2:
            mutant[place : place + 4] = [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"][number % 3]
        elif number % 5 == 3:
            del mutant[place:]
        results.append(bytes(mutant) or b"\0")
    return results
