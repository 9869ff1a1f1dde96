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
from weft.tensors import not_finite, read_listed, write_listed
from weft.training.checkpoint import checkpoints_dir, read_log, read_train_state, remove_expired, run_checksum
from weft.training.loop import Loop
from weft.training.snapshot import Snapshot, TensorFile


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
    if loop.carry is None or loop.batch_sampler.resets_state(train_state.batch_index):
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
    tensors, metadata = read_listed(path)
    parts = [tensors[name] for name in sorted(tensors)]
    try:
        return unflatten(json.loads(metadata["shape"]), parts)
    except (KeyError, ValueError, IndexError, TypeError, RecursionError):
        raise ModelError(path, "corrupted: its tensors do not match its metadata") from None


def weights_file(loop: Loop, metadata: Mapping[str, str] | None = None) -> TensorFile:
    """A file with the weights and buffers of the model."""
    model = loop.loss_module.model
    weights, parameters = model.state_dict(), {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return TensorFile(weights, metadata or {}, volatile=frozenset(weights) - parameters)


def contents(loop: Loop) -> dict[str, TensorFile]:
    """The tensor files of a checkpoint."""
    carry = {f"{index:04d}": part for index, part in enumerate(tree_leaves(loop.carry))}
    files_of = {
        "model.safetensors": weights_file(loop),
        "optimizer.safetensors": TensorFile(loop.optimizers.tensors()),
        "state.safetensors": TensorFile(carry, {"shape": json.dumps(flatten(loop.carry))}, volatile=frozenset(carry)),
    }
    if loop.ema is not None:
        files_of["average.safetensors"] = TensorFile(loop.ema.tensors())
    return files_of


def write(snapshot: Snapshot, train_state: Mapping[str, Any], run_dir: Path, checksums: Mapping[str, Any]) -> Path:
    """Write the checkpoint checkpoints/STEP of a run, with the checksums of the files that it depends on, then remove all but
    the newest two checkpoints."""
    directory = checkpoints_dir(run_dir)
    files.make_subdirectory(directory)
    files.remove_temporary_files(directory)  # leftovers of a killed process
    checkpoint = directory / f"{train_state['step']:06d}"
    known: dict[str, Any] = {}
    with files.atomic_directory(checkpoint, {"owner": run_checksum(run_dir), **checksums}, known) as temp:
        snapshot.finish()
        for name, layout in snapshot.layouts.items():
            known[name] = write_listed(temp / name, layout, snapshot.data(name))
        files.write_json(temp / "train_state.json", train_state)
        files.write_bytes(temp / METRICS, read_log(run_dir)[: train_state["metrics"]])
    remove_expired(run_dir)
    return checkpoint


def restore(loop: Loop, checkpoint: Path) -> None:
    """Restore weights, optimizer, EMA, carried state and training state from a checkpoint."""
    files.verify(checkpoint)
    device = loop.device_config.device
    weights, _ = read_listed(checkpoint / "model.safetensors")
    if (name := not_finite(weights)) is not None:
        raise ModelError(checkpoint / "model.safetensors", f"{name} has NaN or infinite values", f"remove {checkpoint}")
    try:
        loop.loss_module.model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(checkpoint, f"does not match the model of this run: {' '.join(str(error).split())}") from None
    loop.optimizers.restore(read_listed(checkpoint / "optimizer.safetensors")[0])
    if loop.ema is not None:
        averages = checkpoint / "average.safetensors"
        loop.ema.restore(read_listed(averages)[0], path=averages)
    carry = read_carry(checkpoint / "state.safetensors")
    # copies: tensors that are mapped from a file would keep it open after its removal
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
