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
from weft.parallel.shards import shard_like, whole
from weft.tensors import not_finite, read_tensors, write_tensors
from weft.training.checkpoint import checkpoints_dir, read_log, read_train_state, remove_expired, run_checksum
from weft.training.loop import Loop
from weft.training.micro_batches import gather_carry, split_carry


def flatten(state: Any) -> Any:
    """The structure of a state as JSON: 0 for a tensor, lists for tuples, null for None."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return 0
    return [flatten(part) for part in state]


def unflatten(structure: Any, tensors: list[Tensor]) -> Any:
    """The inverse of `flatten`: the state with this structure and these tensors, in order."""
    if structure is None:
        return None
    return tensors.pop(0) if structure == 0 else tuple(unflatten(part, tensors) for part in structure)


def _can_continue(loop: Loop) -> bool:
    """Whether the model accepts the carried state, tested with one position per row: a checksum does not validate shapes."""
    train_state = loop.train_state
    if loop.carry is None or loop.group.size > 1 or loop.batch_sampler.resets_state(train_state.batch_index):
        return True
    batch = loop.device_config.to_device(
        map_tensors(loop.batch_sampler.batch(train_state.epoch, train_state.batch_index), lambda part: part[:, :2])
    )
    objective, model = loop.loss_module.objective, loop.loss_module.model  # not compiled: that would take too long
    try:
        with torch.no_grad(), loop.device_config.autocast():
            expected = objective.loss(model, batch, None).carry
            objective.loss(model, batch, loop.carry)
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


def save(loop: Loop, run_dir: Path, checksums: Mapping[str, Any] | None = None) -> Path:
    """Write the checkpoint checkpoints/STEP of a run, with the checksums of the files that it depends on, then remove all but
    the newest two checkpoints."""
    directory = checkpoints_dir(run_dir)
    content = _contents(loop)
    if not loop.group.leads:
        return directory / f"{loop.train_state.step:06d}"
    files.make_subdirectory(directory)
    files.remove_temporary_files(directory)  # leftovers of a killed process
    checkpoint = directory / f"{loop.train_state.step:06d}"
    with files.atomic_directory(checkpoint, {"owner": run_checksum(run_dir), **(checksums or {})}) as temp:
        for name, (tensors, metadata) in content.items():
            write_tensors(temp / name, tensors, metadata)
        files.write_json(temp / "train_state.json", loop.train_state.to_json())
        files.write_bytes(temp / METRICS, read_log(run_dir)[: loop.train_state.metrics])
    remove_expired(run_dir)
    return checkpoint


def _contents(loop: Loop) -> dict[str, tuple[dict[str, Tensor], dict[str, str]]]:
    """Tensors and metadata of each file of a checkpoint, whole in the first process; all processes must call it."""
    carry = gather_carry(loop.carry, loop.config.micro_batches, loop.group)
    leaves = {f"{index:04d}": part for index, part in enumerate(tree_leaves(carry))}
    content: dict[str, tuple[dict[str, Tensor], dict[str, str]]] = {
        "model.safetensors": (_whole(loop.loss_module.model.state_dict(keep_vars=True)), {}),
        "optimizer.safetensors": (_whole(loop.optimizers.tensors()), {}),
        "state.safetensors": (leaves, {"shape": json.dumps(flatten(carry))}),
    }
    if loop.ema is not None:
        content["average.safetensors"] = (_whole(loop.ema.tensors()), {})
    return content


def _whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors; those that are the same tensor stay so."""
    found: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in found:
            found[id(tensor)] = whole(tensor.detach())
    return {name: found[id(tensor)] for name, tensor in tensors.items()}


def restore(loop: Loop, checkpoint: Path) -> None:
    """Restore weights, optimizer, EMA, carried state and training state from a checkpoint."""
    files.verify(checkpoint)
    device = loop.device_config.device
    weights, _ = read_tensors(checkpoint / "model.safetensors")
    if (name := not_finite(weights)) is not None:
        raise ModelError(checkpoint / "model.safetensors", f"{name} has NaN or infinite values", f"remove {checkpoint}")
    try:
        ours = loop.loss_module.model.state_dict()
        loop.loss_module.model.load_state_dict(
            {name: shard_like(weight, ours[name]) if name in ours else weight for name, weight in weights.items()}
        )
    except RuntimeError as error:
        raise ModelError(checkpoint, f"does not match the model of this run: {' '.join(str(error).split())}") from None
    loop.optimizers.restore(read_tensors(checkpoint / "optimizer.safetensors")[0])
    if loop.ema is not None:
        averages = checkpoint / "average.safetensors"
        loop.ema.restore(read_tensors(averages)[0], path=averages)
    carry = read_carry(checkpoint / "state.safetensors")
    # copies: tensors that are mapped from a file would keep it open after its removal
    carry = split_carry(carry, loop.config.micro_batches, loop.group)
    loop.carry = tree_map(lambda part: part.to(device, copy=True), carry)
    loop.train_state = read_train_state(checkpoint)
    if loop.train_state.batch_index >= loop.batch_sampler.batches(loop.train_state.epoch):
        raise ModelError(
            checkpoint / "train_state.json",
            f"corrupted: epoch {loop.train_state.epoch} has no batch {loop.train_state.batch_index}",
        )
    if files.read_json(checkpoint / files.MANIFEST).get("owner", "") != run_checksum(checkpoint.parents[1]):
        raise ModelError(checkpoint, "checkpoint of another run", "remove it")
    if not _can_continue(loop):
        raise ModelError(checkpoint / "state.safetensors", "corrupted: the state does not match the model")
