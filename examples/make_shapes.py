"""Draw two colored shapes with a sentence about them: python examples/make_shapes.py [--output-dir DIR] [--number N]

    0001.png    a red circle above a blue square

The images, 32 x 32 pixels, are in shapes.zip; shapes.tsv lists them with two sentences each. No two images show the same scene.
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

import numpy as np
from _shared import DATA, StableRandom, distinct

from weft.plots.png import png

NUMBER, SIZE, RADIUS = 480, 32, 6
COLORS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (50, 80, 220), "yellow": (230, 200, 40), "black": (20, 20, 20)}
SHAPES = ("circle", "square", "triangle", "cross")
# the first shape is ... the second: centers of both
PLACES = {
    "above": ((16, 8), (16, 24)),
    "below": ((16, 24), (16, 8)),
    "left of": ((8, 16), (24, 16)),
    "right of": ((24, 16), (8, 16)),
}
INVERSE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
Scene = tuple[str, str, str, str, str]  # color and shape of the first, place, color and shape of the second


def mask(shape: str, x: int, y: int) -> np.ndarray:
    """Which pixels a shape covers, bool (SIZE, SIZE)."""
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    dx, dy = np.abs(columns - x), rows - y
    inside: dict[str, np.ndarray] = {
        "circle": dx**2 + dy**2 <= RADIUS**2,
        "square": np.maximum(dx, np.abs(dy)) <= RADIUS - 1,
        "triangle": (np.abs(dy) <= RADIUS) & (2 * dx <= dy + RADIUS),
        "cross": (np.minimum(dx, np.abs(dy)) <= 1) & (np.maximum(dx, np.abs(dy)) <= RADIUS),
    }
    return inside[shape]


def draw(scene: Scene, rng: StableRandom) -> np.ndarray:
    """The image of a scene, uint8 (SIZE, SIZE, 3), moved a little at random."""
    image = np.full((SIZE, SIZE, 3), 245, np.uint8)
    first, second = PLACES[scene[2]]
    shift = rng.below(3) - 1, rng.below(3) - 1
    for (color, shape), (x, y) in zip((scene[:2], scene[3:]), (first, second), strict=True):
        image[mask(shape, x + shift[0], y + shift[1])] = COLORS[color]
    return image


def sentences(scene: Scene) -> tuple[str, str]:
    """Two descriptions: each shape is the subject of one."""
    color, shape, place, other_color, other_shape = scene
    first, second = f"a {color} {shape}", f"a {other_color} {other_shape}"
    return f"{first} {place} {second}", f"{second} {INVERSE[place]} {first}"


def scenes(number: int, rng: StableRandom) -> list[Scene]:
    """Different scenes."""

    def generate(rng: StableRandom) -> tuple[str, Scene]:
        things = [(rng.choice(list(COLORS)), rng.choice(SHAPES)) for _ in range(2)]
        scene = (*things[0], rng.choice(("above", "left of")), *things[1])
        return " ".join(scene), scene

    return [scene for _, scene in distinct(generate, number, rng)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=DATA, help="output directory (examples/data)")
    parser.add_argument("--number", type=int, default=NUMBER, help=f"number of images ({NUMBER})")
    args = parser.parse_args()
    rng = StableRandom(0)
    rows = ["path\tcaption\tother"]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(args.output_dir / "shapes.zip", "w") as archive:
        for index, scene in enumerate(scenes(args.number, rng), 1):
            name = f"{index:04}.png"
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), png(draw(scene, rng)))
            rows.append("\t".join((name, *sentences(scene))))
    (args.output_dir / "shapes.tsv").write_bytes(("\n".join(rows) + "\n").encode())


if __name__ == "__main__":
    main()
