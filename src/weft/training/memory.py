"""Estimate the memory that a run needs, before anything large is allocated."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from weft.data.batch import FULL, map_tensors
from weft.errors import ResourceError
from weft.nn.meta import meta_device
from weft.parallel.group import ALONE, Group
from weft.parallel.rows import parts_of
from weft.resources import format_bytes, free_device_memory, measure_peak_memory
from weft.training.config import TrainConfig
from weft.training.data_parallel import pick_strategy
from weft.training.loop import DeviceConfig
from weft.training.loss_module import LossModule

AnyBatch = tuple[Any, ...]  # tensors (B, ...)
LargestBatch = Callable[[Fraction], AnyBatch]  # the largest batch, with its rows truncated to a fraction of their positions

MIN_POSITIONS = 1024  # length to which rows are truncated in the first measurement
# Memory of a process relative to its tensors, and the limit of an additional amount: the allocator of the C library keeps
# fragments that it cannot reuse, for a small batch about as much as the tensors. The GPU allocator has almost no overhead.
OVERHEAD, MAX_OVERHEAD_BYTES = {"cpu": 1.3, "cuda": 1.0}, {"cpu": 250_000_000, "cuda": 0}
MOMENTS = {"adamw": 2, "muon": 2, "sgd": 1}  # maximum number of tensors in the optimizer state of a weight


def check_weights(build_model: Callable[[], nn.Module], config: TrainConfig, device: torch.device, group: Group = ALONE) -> int:
    """Refuse a model whose weights, gradients, EMA and optimizer state do not fit into memory. Returns its number of
    parameters."""
    with meta_device():
        num_parameters = sum(weight.numel() for weight in build_model().parameters())
    has_ema = config.ema_decay > 0
    needed = num_parameters * 4 * (2 + has_ema + MOMENTS[config.optimizer])
    if pick_strategy(config.parallel, num_parameters) == "fsdp":
        needed //= group.size
    if needed > (available := free_device_memory(device) // _sharing(group, device)):
        optimizer = f"{config.optimizer} and EMA" if has_ema else config.optimizer
        raise ResourceError(
            "model",
            f"{_short(num_parameters)} parameters need {format_bytes(needed)} to train with {optimizer},"
            f" {format_bytes(available)} are free",
            "reduce hidden_size or num_layers",
        )
    return num_parameters


def _sharing(group: Group, device: torch.device) -> int:
    """The number of processes that share the memory of a device."""
    return 1 if device.type == "cuda" else group.hosts.count(group.hosts[group.rank])


def _short(count: int) -> str:
    """A count as short text, such as 21.6B for 21603480026."""
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f}{unit}"
    return str(count)


def check_batch(loss_module: LossModule, largest_batch: LargestBatch, config: TrainConfig, device_config: DeviceConfig) -> int:
    """Refuse a batch whose activations and gradients do not fit into memory, by running a few of its rows.

    Long rows are truncated in the first measurement and then extended until the result is certain, so that a batch that is too
    large is refused before it fills the memory.

    Returns:
        The maximum number of bytes that a batch takes.
    """
    batch = largest_batch(FULL)
    max_length = max(part.size(1) for part in batch if part is not None and part.dim() > 1)
    group = device_config.group
    rows = max(len(part.rows) for part in parts_of(len(batch[0]), config.micro_batches, rank=0, size=group.size))
    length, weight_bytes = min(max_length, MIN_POSITIONS), 4 * sum(weight.numel() for weight in loss_module.parameters())
    optimizer_bytes = weight_bytes * (MOMENTS[config.optimizer] + (config.ema_decay > 0))  # allocated by the first step
    # with micro-batches, the gradients of earlier ones are in memory during the next
    gradient_bytes = weight_bytes if rows < len(batch[0]) else 0
    while True:
        part = map_tensors(largest_batch(Fraction(length, max_length)), lambda part: part[:rows])
        measured = batch_bytes(loss_module, part, device_config)
        free = free_device_memory(device_config.device) // _sharing(group, device_config.device)
        available = max(0, free - optimizer_bytes)
        activations = max(0, measured - weight_bytes)  # gradients do not depend on the length
        # activations grow at least linearly and at most quadratically with the length of a row
        estimates = (measured - activations + activations * max_length**power // length**power for power in (1, 2))
        needed, limit = (gradient_bytes + _memory_in_use(estimate, device_config.device.type) for estimate in estimates)
        if needed > available:
            fix = f"reduce batch_tokens or increase micro_batches (now {config.micro_batches})"
            raise ResourceError(
                "train.batch_tokens",
                f"a batch of {rows} rows of {max_length - 1} tokens needs about {format_bytes(needed)},"
                f" {format_bytes(available)} are free",
                fix if rows > 1 else "reduce data.context_length or truncate the longest lines",
            )
        if limit <= available:
            return limit
        length = min(max_length, 2 * length, max(length + 1, int(length * (available / measured) ** 0.5)))


def can_copy_state(loss_module: LossModule, batch_bytes: int, config: TrainConfig, device_config: DeviceConfig) -> bool:
    """Whether the host has memory for a copy of all that a checkpoint has, and of the best weights, besides what training takes
    (a batch of `batch_bytes`, and what the first step allocates). Otherwise training waits while a checkpoint is written."""
    host, group = torch.device("cpu"), device_config.group
    weight_bytes = 4 * sum(weight.numel() for weight in loss_module.parameters())
    optimizer_bytes = weight_bytes * (MOMENTS[config.optimizer] + (config.ema_decay > 0))
    training_bytes = optimizer_bytes + batch_bytes if device_config.device.type == "cpu" else 0
    copy_bytes = weight_bytes + (weight_bytes + optimizer_bytes) // group.size  # each process writes a part of a checkpoint
    return free_device_memory(host) // _sharing(group, host) >= training_bytes + copy_bytes


def has_unused_weights(loss_module: LossModule, largest_batch: LargestBatch, device_config: DeviceConfig) -> bool:
    """Whether some trained weights have no influence on the loss: those who exchange gradients must know."""
    weights = [weight for weight in loss_module.parameters() if weight.requires_grad]
    batch = device_config.to_device(map_tensors(largest_batch(FULL), lambda part: part[:2]))
    with device_config.autocast():
        total = loss_module(batch, None).to_minimize()
    return any(gradient is None for gradient in torch.autograd.grad(total, weights, allow_unused=True))


def _memory_in_use(tensor_bytes: int, device: str) -> int:
    """The bytes that a process uses for this many bytes of tensors."""
    return int(OVERHEAD[device] * tensor_bytes) + min(tensor_bytes, MAX_OVERHEAD_BYTES[device])


def batch_bytes(loss_module: LossModule, batch: AnyBatch, device_config: DeviceConfig) -> int:
    """The peak number of bytes of a forward and a backward pass, including the gradients of the weights.

    If state is carried over, the batch is run with a state, because attention also sees the previous window.
    """
    weights = [weight for weight in loss_module.parameters() if weight.requires_grad]

    def forward_and_backward(rows: int) -> None:
        part = device_config.to_device(map_tensors(batch, lambda tensor: tensor[:rows]))
        with torch.no_grad(), device_config.autocast():
            carry = loss_module(part, None).carry
        with device_config.autocast():
            total = loss_module(part, carry).to_minimize()
        torch.autograd.grad(total, weights, allow_unused=True)  # does not store gradients in the weights

    return measure_peak_memory(forward_and_backward, len(batch[0]))
