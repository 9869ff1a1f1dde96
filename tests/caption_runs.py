"""Small images, clips and features with texts, and tiny captioners."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from media_files import encoded
from small_runs import SilentCallback

import weft
from weft.runs.job import train

COLORS = {"red": (220, 30, 30), "green": (30, 180, 30), "blue": (30, 30, 220)}
TINY: dict[str, Any] = {"hidden_size": 16, "max_shift": 1, "encoder": {"conv_channels": 4}}
TRAIN: dict[str, Any] = {"max_steps": 2, "batch_tokens": 64, "num_validations": 1}


def square(color: str, side: int = 16) -> np.ndarray:
    """A colored square on white, uint8 (side, side, 3)."""
    image = np.full((side, side, 3), 255, np.uint8)
    image[side // 4 : -side // 4, side // 4 : -side // 4] = COLORS[color]
    return image


def caption(color: str) -> str:
    return f"a {color} square"


def write_images(directory: Path, count: int = 12) -> Path:
    """images.zip with squares, and a manifest with one text each."""
    rows = []
    with zipfile.ZipFile(directory / "images.zip", "w") as archive:
        for index in range(count):
            color = list(COLORS)[index % 3]
            archive.writestr(f"{index}.png", encoded(square(color, 16 + index % 2), "PNG"))
            rows.append(f"{index}.png\t{caption(color)}")
    (directory / "images.tsv").write_text("\n".join(["path\tcaption", *rows]) + "\n")
    return directory


def write_clips(directory: Path, count: int = 6) -> Path:
    """Directories of 3 to 5 frames each, and a manifest."""
    rows = []
    for index in range(count):
        color = list(COLORS)[index % 3]
        (directory / f"clip{index}").mkdir()
        for frame in range(3 + index % 3):
            (directory / f"clip{index}" / f"{frame}.png").write_bytes(encoded(square(color), "PNG"))
        rows.append(f"clip{index}\t{caption(color)}")
    (directory / "clips.tsv").write_text("\n".join(["path\tcaption", *rows]) + "\n")
    return directory


def write_features(directory: Path, count: int = 6) -> Path:
    """Arrays of 2 to 4 positions with 5 features, and a manifest."""
    rng, rows = np.random.default_rng(0), []
    for index in range(count):
        np.save(directory / f"{index}.npy", rng.normal(size=(2 + index % 3, 5)))
        rows.append(f"{index}.npy\t{caption(list(COLORS)[index % 3])}")
    (directory / "features.tsv").write_text("\n".join(["path\tcaption", *rows]) + "\n")
    return directory


def run_values(data: dict[str, Any], arch: str = "show-attend-tell", **tables: Any) -> dict[str, Any]:
    """A run file of a tiny captioner; `model` and `train` add to its tables."""
    model = {"arch": arch, **TINY, **tables.get("model", {})}
    return {
        "task": "captioning",
        "recommend": False,
        "data": data,
        "tokenizer": {"type": "whitespace"},
        "model": model,
        "train": {**TRAIN, **tables.get("train", {})},
    }


def trained(values: dict[str, Any], directory: Path, callback: SilentCallback | None = None, name: str = "run") -> Any:
    """The run of a run file next to its data, in directory/name."""
    train(values, directory / name, base=directory, callback=callback or SilentCallback())
    return weft.load(directory / name)
