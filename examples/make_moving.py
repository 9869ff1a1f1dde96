"""Draw a shape that moves, with a sentence: python examples/make_moving.py [--output-dir DIR] [--number N]

    0001.gif    a red circle moves left

The clips, 8 frames of 20 x 20 pixels, are in moving.zip; moving.tsv lists them. Shapes move at random speeds.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from pathlib import Path

import numpy as np
from _shared import DATA, StableRandom
from PIL import Image

NUMBER, SIZE, FRAMES, RADIUS = 200, 20, 8, 3
COLORS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (50, 80, 220)}
SHAPES = ("circle", "square")
MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def frame(color: str, shape: str, x: float, y: float) -> Image.Image:
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    dx, dy = np.abs(columns - x), np.abs(rows - y)
    inside = dx**2 + dy**2 <= RADIUS**2 if shape == "circle" else np.maximum(dx, dy) <= RADIUS - 0.5
    image = np.full((SIZE, SIZE, 3), 245, np.uint8)
    image[inside] = COLORS[color]
    return Image.fromarray(image)


def clip(color: str, shape: str, move: str, rng: StableRandom) -> bytes:
    """A GIF in which the shape passes the center in the middle of the clip."""
    speed, (dx, dy) = 0.8 + rng.random(), MOVES[move]
    x, y = (SIZE / 2 + 4 * rng.random() - 2 for _ in range(2))
    steps = [speed * (number - (FRAMES - 1) / 2) for number in range(FRAMES)]
    first, *others = [frame(color, shape, x + step * dx, y + step * dy) for step in steps]
    content = io.BytesIO()
    first.save(content, "GIF", save_all=True, append_images=others, duration=40)
    return content.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=DATA, help="output directory (examples/data)")
    parser.add_argument("--number", type=int, default=NUMBER, help=f"number of clips ({NUMBER})")
    args = parser.parse_args()
    rng, rows = StableRandom(0), ["path\tcaption"]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(args.output_dir / "moving.zip", "w") as archive:
        for number in range(1, args.number + 1):
            color, shape, move = rng.choice(list(COLORS)), rng.choice(SHAPES), rng.choice(list(MOVES))
            name = f"{number:04}.gif"
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), clip(color, shape, move, rng))
            rows.append(f"{name}\ta {color} {shape} moves {move}")
    (args.output_dir / "moving.tsv").write_bytes(("\n".join(rows) + "\n").encode())


if __name__ == "__main__":
    main()
