"""Checkpoints: a folder a step, complete or not there, with the sums of its files. No pickle is written or read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft import files
from weft.errors import ModelError
from weft.nn.state import each, leaves
from weft.tensors import read_tensors, write_tensors
from weft.train.cursor import Cursor
from weft.train.loop import Loop

KEPT = 2  # the newest, and one more in case that is damaged


def shape_of(state: Any) -> Any:
    """A state with numbers for its tensors, as JSON can hold it: lists for tuples, null for None."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return 0
    return [shape_of(part) for part in state]


def fill(shape: Any, tensors: list[Tensor]) -> Any:
    """The state of that shape, its tensors taken from the front of the list."""
    if shape is None:
        return None
    return tensors.pop(0) if shape == 0 else tuple(fill(part, tensors) for part in shape)


def save(loop: Loop, root: Path) -> Path:
    """Write checkpoints/STEP under `root`, then drop all but the newest two."""
    folder = root / "checkpoints"
    folder.mkdir(exist_ok=True)
    files.sweep(folder)  # what a killed process left
    final = folder / f"{loop.cursor.step:06d}"
    with files.building(final) as temp:
        write_tensors(temp / "model.safetensors", loop.learner.model.state_dict())
        write_tensors(temp / "optimizer.safetensors", loop.optimizers.tensors())
        carry = {f"{number:04d}": part for number, part in enumerate(leaves(loop.carry))}
        write_tensors(temp / "carry.safetensors", carry, {"shape": json.dumps(shape_of(loop.carry))})
        files.write_json(temp / "cursor.json", loop.cursor.to_json())
    for old in names(root)[:-KEPT]:
        files.remove(folder / old)
    return final


def names(root: Path) -> list[str]:
    """The checkpoints of a run, oldest first."""
    folder = root / "checkpoints"
    return sorted((p.name for p in folder.iterdir() if p.name.isdigit()), key=int) if folder.is_dir() else []


def restore(loop: Loop, folder: Path) -> None:
    """Put weights, optimiser, carry and cursor where the checkpoint has them."""
    files.verify(folder)
    device = loop.place.device
    weights, _ = read_tensors(folder / "model.safetensors")
    try:
        loop.learner.model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(f"{folder}: does not fit the model of this run: {' '.join(str(error).split())}") from None
    loop.optimizers.restore(read_tensors(folder / "optimizer.safetensors")[0])
    carry, notes = read_tensors(folder / "carry.safetensors")
    parts = [carry[name].to(device) for name in sorted(carry)]
    # copies: what is mapped from a file that is removed later would hold on to it
    loop.carry = each(torch.clone, fill(json.loads(notes["shape"]), parts))
    loop.cursor = Cursor.from_json(files.read_json(folder / "cursor.json"), str(folder / "cursor.json"))


def newest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and what was found wrong with newer ones."""
    faults: list[str] = []
    for name in reversed(names(root)):
        folder = root / "checkpoints" / name
        try:
            files.verify(folder)
        except ModelError as error:
            faults.append(str(error))
            continue
        return folder, faults
    return None, faults
