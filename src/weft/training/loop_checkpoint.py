"""Saving a training loop to a checkpoint, and restoring it."""

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
    """The structure of a state as JSON: 0 for a tensor, lists for tuples, null for None."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return 0
    return [flatten(part) for part in state]


def unflatten(shape: Any, tensors: list[Tensor]) -> Any:
    """The state with that structure, with the tensors in order."""
    if shape is None:
        return None
    return tensors.pop(0) if shape == 0 else tuple(unflatten(part, tensors) for part in shape)


def _can_continue(loop: Loop) -> bool:
    """Whether the model accepts the carried state, tried on one position per row: a correct checksum says nothing about
    shapes."""
    train_state = loop.train_state
    if loop.carry is None or loop.batch_sampler.resets_state(train_state.batch_index):
        return True
    batch = loop.device_config.to_device(
        map_tensors(loop.batch_sampler.batch(train_state.epoch, train_state.batch_index), lambda part: part[:, :2])
    )
    task, model = loop.loss_module.task, loop.loss_module.model  # not compiled: compiling this would take too long
    try:
        with torch.no_grad(), loop.device_config.autocast():
            expected = task.loss(model, batch, None).carry
            task.loss(model, batch, loop.carry)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    pairs = zip(tree_leaves(expected), tree_leaves(loop.carry), strict=False)
    same_types = all(len(a) == len(b) and a.is_floating_point() == b.is_floating_point() for a, b in pairs)
    return same_types and flatten(expected) == flatten(loop.carry)


def read_carry(path: Path) -> Any:
    """The state that is carried over to the next batch."""
    tensors, metadata = read_tensors(path)
    parts = [tensors[name] for name in sorted(tensors)]
    try:
        return unflatten(json.loads(metadata["shape"]), parts)
    except (KeyError, ValueError, IndexError, TypeError, RecursionError):
        raise ModelError(path, "corrupted: its tensors do not match its metadata") from None


def save(loop: Loop, root: Path, checksums: Mapping[str, Any] | None = None) -> Path:
    """Write checkpoints/STEP under `root`, with the checksums of the files that it depends on, then remove all but the newest
    two checkpoints."""
    run_dir = checkpoints_dir(root)
    files.make_subdirectory(run_dir)
    files.remove_temporary_files(run_dir)  # leftovers of a killed process
    final = run_dir / f"{loop.train_state.step:06d}"
    with files.atomic_directory(final, {"owner": owner(root), **(checksums or {})}) as temp:
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
    """Restore weights, optimizer, EMA, carried state and training state from a checkpoint."""
    files.verify(run_dir)
    device = loop.device_config.device
    weights, _ = read_tensors(run_dir / "model.safetensors")
    if (name := not_finite(weights)) is not None:
        raise ModelError(run_dir / "model.safetensors", f"{name} has NaN or infinite values", f"remove {run_dir}")
    try:
        loop.loss_module.model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(run_dir, f"does not match the model of this run: {' '.join(str(error).split())}") from None
    loop.optimizers.restore(read_tensors(run_dir / "optimizer.safetensors")[0])
    if loop.ema is not None:
        averages = run_dir / "average.safetensors"
        loop.ema.restore(read_tensors(averages)[0], at=str(averages))
    carry = read_carry(run_dir / "state.safetensors")
    # copies: tensors that are mapped from a file would keep it open after its removal
    loop.carry = tree_map(lambda part: part.to(device, copy=True), carry)
    loop.train_state = read_train_state(run_dir)
    if loop.train_state.batch_index >= loop.batch_sampler.batches(loop.train_state.epoch):
        raise ModelError(
            run_dir / "train_state.json",
            f"corrupted: epoch {loop.train_state.epoch} has no batch {loop.train_state.batch_index}",
        )
    if files.read_json(run_dir / files.MANIFEST).get("owner", "") != owner(run_dir.parents[1]):
        raise ModelError(run_dir, "checkpoint of another run", "remove it")
    if not _can_continue(loop):
        raise ModelError(run_dir / "state.safetensors", "corrupted: the state does not match the model")
