"""Saving a training loop to a checkpoint, and restoring it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft import files
from weft.data.batch import map_tensors
from weft.errors import ModelError, ResourceError
from weft.log import METRICS
from weft.nn.state import tree_leaves, tree_map
from weft.parallel.group import Group
from weft.parallel.shards import local
from weft.tensors import not_finite, read_listed, write_listed
from weft.training.checkpoint import checkpoints_dir, read_log, read_train_state, remove_expired, run_checksum
from weft.training.checkpoint_shards import (
    INDEX,
    STATE,
    Shard,
    StoredTensors,
    divide,
    join_states,
    make_index,
    state_rows,
    together,
)
from weft.training.loop import Loop
from weft.training.micro_batches import split_carry
from weft.training.snapshot import Snapshot, TensorFile

SHARED_HINT = "use a directory that all hosts share"


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
    """The state that is carried over to the next batch, from a file."""
    tensors, metadata = read_listed(path)
    parts = [tensors[name] for name in sorted(tensors)]
    try:
        return unflatten(json.loads(metadata["shape"]), parts)
    except (KeyError, ValueError, IndexError, TypeError, RecursionError):
        raise ModelError(path, "corrupted: its tensors do not match its metadata") from None


# ---- saving


def weights_file(model: nn.Module, metadata: Mapping[str, str] | None = None) -> TensorFile:
    """A file with the weights and buffers of a model."""
    weights, parameters = model.state_dict(keep_vars=True), {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return TensorFile(weights, metadata or {}, volatile=frozenset(weights) - parameters)


def contents(loop: Loop) -> Shard:
    """The tensor files of a checkpoint that this process writes."""
    carry = {f"{index:04d}": part for index, part in enumerate(tree_leaves(loop.carry))}
    content = {
        "model": weights_file(loop.loss_module.model),
        "optimizer": TensorFile(loop.optimizers.tensors()),
        STATE: TensorFile(carry, {"shape": json.dumps(flatten(loop.carry))}, volatile=frozenset(carry)),
    }
    if loop.ema is not None:
        content["average"] = TensorFile(loop.ema.tensors())
    return divide(content, loop.group)


class CheckpointContent(NamedTuple):
    """What a checkpoint has besides the tensors in a snapshot."""

    shard: Shard  # without its tensors
    train_state: Mapping[str, Any]
    num_rows: int  # of the carried state in this process
    micro_batches: int

    @staticmethod
    def of(loop: Loop, shard: Shard) -> CheckpointContent:
        num_rows = len(leaves[0]) if (leaves := tree_leaves(loop.carry)) else 0
        return CheckpointContent(shard._replace(files={}), loop.train_state.to_json(), num_rows, loop.config.micro_batches)


def write(snapshot: Snapshot, content: CheckpointContent, run_dir: Path, checksums: Mapping[str, Any], group: Group) -> None:
    """Write the checkpoint checkpoints/STEP of a run, with the checksums of the files that it depends on, then remove all but
    the newest two checkpoints. All processes of a group call it; the first one publishes what all have written."""
    directory, known = checkpoints_dir(run_dir), dict[str, Any]()
    checkpoint = directory / f"{content.train_state['step']:06d}"
    with ExitStack() as stack:

        def begin() -> str:
            if not group.leads:
                return ""
            files.make_subdirectory(directory)
            files.remove_temporary_files(directory)  # leftovers of a killed process
            extra = {"owner": run_checksum(run_dir), **checksums}
            return stack.enter_context(files.atomic_directory(checkpoint, extra, known)).name

        def write_files() -> list[Any]:
            snapshot.finish()
            for name, layout in snapshot.layouts.items():
                known[name] = write_listed(temp / name, layout, snapshot.data(name))
            return [known, content.shard.parts, content.num_rows]

        def publish() -> None:
            if not group.leads:
                return
            if group.size > 1:
                _list_shards(temp, written, content, known)
            files.write_json(temp / "train_state.json", content.train_state)
            files.write_bytes(temp / METRICS, read_log(run_dir)[: content.train_state["metrics"]])
            stack.pop_all().close()
            remove_expired(run_dir)

        temp = directory / together(group, begin)[0]
        written = together(group, write_files)
        together(group, publish)


def _list_shards(temp: Path, written: Sequence[Any], content: CheckpointContent, known: dict[str, Any]) -> None:
    """Write the index of the files of all processes."""
    for files_of, _, _ in written:
        known.update(files_of)
    for name, entry in known.items():
        if not (temp / name).is_file() or (temp / name).stat().st_size != entry["size"]:
            raise ResourceError(temp / name, "another process has written it, but it is not here", SHARED_HINT)
    rows = state_rows([num_rows for *_, num_rows in written], content.micro_batches)
    files.write_json(temp / INDEX, make_index([parts for _, parts, _ in written], content.shard.tied, rows))


# ---- restoring


def restore(loop: Loop, checkpoint: Path) -> None:
    """Restore weights, optimizer, EMA, carried state and training state from a checkpoint."""
    group, device = loop.group, loop.device_config.device
    together(group, partial(files.verify, checkpoint, rank=group.rank, size=group.size))
    stored = StoredTensors(checkpoint)
    weights = stored.read("model", loop.loss_module.model.state_dict().get)
    if (name := not_finite({name: local(weight) for name, weight in weights.items()})) is not None:
        raise ModelError(stored.where("model"), f"{name} has NaN or infinite values", f"remove {checkpoint}")
    try:
        loop.loss_module.model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(checkpoint, f"does not match the model of this run: {' '.join(str(error).split())}") from None
    loop.optimizers.restore(stored.read("optimizer", loop.optimizers.like))
    if loop.ema is not None:
        loop.ema.restore(stored.read("average", loop.ema.tensors().get), path=stored.where("average"))
    carry = join_states([(read_carry(path), rows) for path, rows in stored.states()], stored.where(STATE))
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
        raise ModelError(stored.where(STATE), "corrupted: the state does not match the model")
