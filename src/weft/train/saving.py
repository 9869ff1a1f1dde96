"""A training loop as a checkpoint, and a checkpoint as a training loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft import files
from weft.data.batch import changed
from weft.errors import ModelError
from weft.log import METRICS
from weft.nn.state import each, leaves
from weft.tensors import not_finite, read_tensors, write_tensors
from weft.train.checkpoint import drop_old, owner, place, read_cursor, read_log
from weft.train.loop import Loop


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


def save(loop: Loop, root: Path, known: Mapping[str, Any] | None = None) -> Path:
    """Write checkpoints/STEP under `root`, with what is `known` of the files that it goes with, then drop all but the newest
    two."""
    folder = place(root)
    files.own_folder(folder)
    files.sweep(folder)  # what a killed process left
    final = folder / f"{loop.cursor.step:06d}"
    with files.building(final, {"owner": owner(root), **(known or {})}) as temp:
        write_tensors(temp / "model.safetensors", loop.learner.model.state_dict())
        write_tensors(temp / "optimizer.safetensors", loop.optimizers.tensors())
        if loop.average is not None:
            write_tensors(temp / "average.safetensors", loop.average.tensors())
        carry = {f"{number:04d}": part for number, part in enumerate(leaves(loop.carry))}
        write_tensors(temp / "carry.safetensors", carry, {"shape": json.dumps(shape_of(loop.carry))})
        files.write_json(temp / "cursor.json", loop.cursor.to_json())
        files.write_bytes(temp / METRICS, read_log(root)[: loop.cursor.metrics])
    drop_old(root)
    return final


def restore(loop: Loop, folder: Path) -> None:
    """Put weights, optimiser, averages, carry and cursor where the checkpoint has them."""
    files.verify(folder)
    device = loop.place.device
    weights, _ = read_tensors(folder / "model.safetensors")
    if (name := not_finite(weights)) is not None:
        raise ModelError(f"{folder / 'model.safetensors'}: {name} holds NaN or infinity; remove {folder}")
    try:
        loop.learner.model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(f"{folder}: does not fit the model of this run: {' '.join(str(error).split())}") from None
    loop.optimizers.restore(read_tensors(folder / "optimizer.safetensors")[0])
    if loop.average is not None:
        averages = folder / "average.safetensors"
        loop.average.restore(read_tensors(averages)[0], at=str(averages))
    carry = read_carry(folder / "carry.safetensors")
    # copies: what is mapped from a file that is removed later would hold on to it
    loop.carry = each(lambda part: part.to(device, copy=True), carry)
    loop.cursor = read_cursor(folder)
    if loop.cursor.index >= loop.order.batches(loop.cursor.epoch):
        where = folder / "cursor.json"
        raise ModelError(f"{where}: is damaged: there is no batch {loop.cursor.index} in epoch {loop.cursor.epoch}")
    if files.read_json(folder / files.MANIFEST).get("owner", "") != owner(folder.parents[1]):
        raise ModelError(f"{folder}: is a checkpoint of another run; remove it")
    if not _goes_on(loop):
        raise ModelError(f"{folder / 'carry.safetensors'}: is damaged: the model can't go on from the state in it")
