"""Checkpoints: a folder a step, complete or not there, with the sums of its files. No pickle is written or read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft import files
from weft.data.order import changed
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


def owner(root: Path) -> str:
    """The sum of resolved.toml: weights of the same shapes may be those of another run. Empty where there is none."""
    resolved = root / "resolved.toml"
    return files.sha256(resolved) if resolved.exists() else ""


def save(loop: Loop, root: Path) -> Path:
    """Write checkpoints/STEP under `root`, then drop all but the newest two."""
    folder = root / "checkpoints"
    folder.mkdir(exist_ok=True)
    files.sweep(folder)  # what a killed process left
    final = folder / f"{loop.cursor.step:06d}"
    with files.building(final, owner=owner(root)) as temp:
        write_tensors(temp / "model.safetensors", loop.learner.model.state_dict())
        write_tensors(temp / "optimizer.safetensors", loop.optimizers.tensors())
        if loop.average is not None:
            write_tensors(temp / "average.safetensors", loop.average.tensors())
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
    """Put weights, optimiser, averages, carry and cursor where the checkpoint has them."""
    files.verify(folder)
    device = loop.place.device
    weights, _ = read_tensors(folder / "model.safetensors")
    try:
        loop.learner.model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(f"{folder}: does not fit the model of this run: {' '.join(str(error).split())}") from None
    loop.optimizers.restore(read_tensors(folder / "optimizer.safetensors")[0])
    if loop.average is not None:
        place = folder / "average.safetensors"
        loop.average.restore(read_tensors(place)[0], at=str(place))
    carry = read_carry(folder / "carry.safetensors")
    # copies: what is mapped from a file that is removed later would hold on to it
    loop.carry = each(lambda part: part.to(device, copy=True), carry)
    place = folder / "cursor.json"
    loop.cursor = Cursor.from_json(files.read_json(place), str(place))
    if loop.cursor.index >= loop.order.batches(loop.cursor.epoch):
        raise ModelError(f"{place}: is damaged: there is no batch {loop.cursor.index} in epoch {loop.cursor.epoch}")
    if files.read_json(folder / files.MANIFEST).get("owner", "") != owner(folder.parents[1]):
        raise ModelError(f"{folder}: is a checkpoint of another run; remove it")
    if not _goes_on(loop):
        raise ModelError(f"{folder / 'carry.safetensors'}: is damaged: the model can't go on from the state in it")


def _goes_on(loop: Loop) -> bool:
    """Whether the next batch can be read on top of the carried state, tried on a position a row: a sum that is right says
    nothing of shapes."""
    cursor = loop.cursor
    if loop.carry is None or loop.order.anew(cursor.index):
        return True
    batch = loop.place.moved(changed(loop.order.batch(cursor.epoch, cursor.index), lambda part: part[:, :2]))
    task, model = loop.learner.task, loop.learner.model  # as they are: to compile this would take longer than to train
    try:
        with torch.no_grad(), loop.place.autocast():
            fresh = task.loss(model, batch, None).carry
            task.loss(model, batch, loop.carry)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    pairs = zip(leaves(fresh), leaves(loop.carry), strict=False)
    alike = all(len(a) == len(b) and a.is_floating_point() == b.is_floating_point() for a, b in pairs)
    return alike and shape_of(fresh) == shape_of(loop.carry)


def read_carry(path: Path) -> Any:
    """The state that a checkpoint carries on."""
    tensors, notes = read_tensors(path)
    parts = [tensors[name] for name in sorted(tensors)]
    try:
        return fill(json.loads(notes["shape"]), parts)
    except (KeyError, ValueError, IndexError, TypeError, RecursionError):
        raise ModelError(f"{path}: is damaged: its tensors do not have the shape it notes") from None


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
