"""A training loop as a checkpoint, and a checkpoint as a training loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft import files
from weft.data.batch import map_tensors
from weft.errors import ModelError
from weft.log import METRICS
from weft.nn.state import tree_leaves, tree_map
from weft.tensors import not_finite, read_tensors, write_tensors
from weft.training.checkpoint import checkpoints_dir, drop_previous, owner, read_log, read_train_state
from weft.training.loop import Loop


def flatten(state: Any) -> Any:
    """A state with numbers for its tensors, as JSON can hold it: lists for tuples, null for None."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return 0
    return [flatten(part) for part in state]


def unflatten(shape: Any, tensors: list[Tensor]) -> Any:
    """The state of that shape, its tensors taken from the front of the list."""
    if shape is None:
        return None
    return tensors.pop(0) if shape == 0 else tuple(unflatten(part, tensors) for part in shape)


def _goes_on(loop: Loop) -> bool:
    """Whether the next batch can be read on top of the carried state, tried on a position a row: a sum that is right says
    nothing of shapes."""
    train_state = loop.train_state
    if loop.carry is None or loop.batch_sampler.resets_state(train_state.batch_index):
        return True
    batch = loop.device_config.moved(
        map_tensors(loop.batch_sampler.batch(train_state.epoch, train_state.batch_index), lambda part: part[:, :2])
    )
    task, model = loop.loss_module.task, loop.loss_module.model  # as they are: to compile this would take longer than to train
    try:
        with torch.no_grad(), loop.device_config.autocast():
            overwrite = task.loss(model, batch, None).carry
            task.loss(model, batch, loop.carry)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    pairs = zip(tree_leaves(overwrite), tree_leaves(loop.carry), strict=False)
    alike = all(len(a) == len(b) and a.is_floating_point() == b.is_floating_point() for a, b in pairs)
    return alike and flatten(overwrite) == flatten(loop.carry)


def read_carry(path: Path) -> Any:
    """The state that a checkpoint carries on."""
    tensors, notes = read_tensors(path)
    parts = [tensors[name] for name in sorted(tensors)]
    try:
        return unflatten(json.loads(notes["shape"]), parts)
    except (KeyError, ValueError, IndexError, TypeError, RecursionError):
        raise ModelError(path, "is damaged: its tensors do not have the shape it notes") from None


def save(loop: Loop, root: Path, known: Mapping[str, Any] | None = None) -> Path:
    """Write checkpoints/STEP under `root`, with what is `known` of the files that it goes with, then drop all but the newest
    two."""
    run_dir = checkpoints_dir(root)
    files.own_directory(run_dir)
    files.sweep(run_dir)  # what a killed process left
    final = run_dir / f"{loop.train_state.step:06d}"
    with files.atomic_directory(final, {"owner": owner(root), **(known or {})}) as temp:
        write_tensors(temp / "model.safetensors", loop.loss_module.model.state_dict())
        write_tensors(temp / "optimizer.safetensors", loop.optimizers.tensors())
        if loop.ema is not None:
            write_tensors(temp / "average.safetensors", loop.ema.tensors())
        carry = {f"{number:04d}": part for number, part in enumerate(tree_leaves(loop.carry))}
        write_tensors(temp / "state.safetensors", carry, {"shape": json.dumps(flatten(loop.carry))})
        files.write_json(temp / "train_state.json", loop.train_state.to_json())
        files.write_bytes(temp / METRICS, read_log(root)[: loop.train_state.metrics])
    drop_previous(root)
    return final


def restore(loop: Loop, run_dir: Path) -> None:
    """Put weights, optimiser, averages, carry and cursor where the checkpoint has them."""
    files.verify(run_dir)
    device = loop.device_config.device
    weights, _ = read_tensors(run_dir / "model.safetensors")
    if (name := not_finite(weights)) is not None:
        raise ModelError(run_dir / "model.safetensors", f"{name} holds NaN or infinity", f"remove {run_dir}")
    try:
        loop.loss_module.model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(run_dir, f"does not fit the model of this run: {' '.join(str(error).split())}") from None
    loop.optimizers.restore(read_tensors(run_dir / "optimizer.safetensors")[0])
    if loop.ema is not None:
        averages = run_dir / "average.safetensors"
        loop.ema.restore(read_tensors(averages)[0], at=str(averages))
    carry = read_carry(run_dir / "state.safetensors")
    # copies: what is mapped from a file that is removed later would hold on to it
    loop.carry = tree_map(lambda part: part.to(device, copy=True), carry)
    loop.train_state = read_train_state(run_dir)
    if loop.train_state.batch_index >= loop.batch_sampler.batches(loop.train_state.epoch):
        where = run_dir / "train_state.json"
        raise ModelError(
            where, f"is damaged: there is no batch {loop.train_state.batch_index} in epoch {loop.train_state.epoch}"
        )
    if files.read_json(run_dir / files.MANIFEST).get("owner", "") != owner(run_dir.parents[1]):
        raise ModelError(run_dir, "is a checkpoint of another run", "remove it")
    if not _goes_on(loop):
        raise ModelError(run_dir / "state.safetensors", "is damaged: the model can't go on from the state in it")
