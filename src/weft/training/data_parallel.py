"""How the processes of a group share a model: one process alone, a whole copy in each (DDP), or a part in each (FSDP2).

The training loop calls a `Replica` like the loss module. Its gradients are sums over all processes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any, Protocol

import torch
from torch import nn

from weft.errors import UsageError
from weft.nn.cross_attention import AttendsToMemory
from weft.nn.stack import Recomputes, by_layer_index
from weft.parallel.group import Group
from weft.parallel.shards import whole
from weft.training.loss_module import LossModule
from weft.training.objective import Loss

# parameters from which "auto" shards a model: with AdamW it takes 16 bytes per parameter, half of the memory of a large GPU
SHARDED_PARAMETERS = 2_000_000_000

# whether every forward pass copies the buffers of the first process; torch 2.13 has renamed the option
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in signature(nn.parallel.DistributedDataParallel).parameters
)


class Reader(Protocol):
    """A thread that reads the weights of a model, to write them to a file."""

    def wait(self) -> None:
        """Wait until the weights may change."""


class Replica:
    """The loss module of one process alone. The subclasses exchange gradients with other processes."""

    gradient_factor = 1.0  # the gradients are the sums over all processes divided by this
    exchanged_bytes = 0  # bytes of gradients and weights that a process sends in a step; 0: not counted
    num_warmups = 0  # batches of a shape before the first that takes the time of all later ones
    reader: Reader | None = None  # who still reads the last copy of `whole_model`

    def __init__(self, loss_module: LossModule) -> None:
        self.loss_module = loss_module

    def __call__(self, batch: Any, carry: Any, counts: bool = True) -> Loss:
        loss: Loss = self.loss_module(batch, carry, counts)
        return loss

    def accumulate(
        self, batch: Any, carry: Any, counts: bool, *, is_last: bool, autocast: Callable[[], AbstractContextManager[Any]]
    ) -> Loss:
        """Add the gradients of a batch to those of the weights: forward pass under `autocast`, and backward pass. Returns the
        loss."""
        with self.backward(is_last=is_last):
            with autocast():
                loss = self(batch, carry, counts)
            torch.autograd.backward(loss.to_minimize())
        return loss

    def backward(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Context manager for a forward and backward pass; gradients are exchanged after the last one of a step."""
        return nullcontext()

    def waiting_seconds(self) -> float:
        """The time per step in which the backward pass waits for gradients of other processes, as far as torch measures it."""
        return 0.0

    def whole_model(self) -> AbstractContextManager[nn.Module]:
        """Context manager with the model, all its weights in this process, for anything but training. What is done to its
        buffers stays; its weights must not be changed."""
        return nullcontext(self.loss_module.model)

    def outdated_model(self) -> nn.Module:
        """A model with the tensors of `whole_model`, whose values may be old: without an exchange, for their sizes."""
        return self.loss_module.model


class Replicated(Replica):
    """Every process has all weights, and exchanges gradients while it computes them: DistributedDataParallel."""

    def __init__(self, loss_module: LossModule, group: Group, *, has_unused: bool) -> None:
        super().__init__(loss_module)
        weights = [weight for weight in loss_module.parameters() if weight.requires_grad]
        self.gradient_factor = group.size  # it averages
        self.exchanged_bytes = 2 * sum(weight.nbytes for weight in weights) * (group.size - 1) // group.size
        options: dict[str, Any] = {_SYNC_BUFFERS: False, "gradient_as_bucket_view": True}
        self.module = nn.parallel.DistributedDataParallel(
            loss_module, process_group=group.process_group, find_unused_parameters=has_unused, **options
        )

    def __call__(self, batch: Any, carry: Any, counts: bool = True) -> Loss:
        loss: Loss = self.module(batch, carry, counts)
        return loss

    def backward(self, *, is_last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if is_last else self.module.no_sync()

    def waiting_seconds(self) -> float:
        module: Any = self.module
        times = module._get_ddp_logging_data()  # nanoseconds
        exchange, overlap = (times.get(f"avg_backward_{name}_time", 0) for name in ("comm", "compute_comm_overlap"))
        return max(0.0, float(exchange - overlap) / 1e9)


class Sharded(Replica):
    """Every process has some rows of each weight, its gradient, its optimizer state and its average, and gathers the weights of
    a layer while it computes it: FSDP2. Make it before the optimizers."""

    def __init__(self, loss_module: LossModule, group: Group, device: torch.device) -> None:
        super().__init__(loss_module)
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        model = loss_module.model
        # in main memory: validation moves it to the device
        self.device, self.copy = device, copy.deepcopy(model).cpu().requires_grad_(False)
        total = sum(weight.nbytes for weight in model.parameters())
        self.exchanged_bytes = 3 * total * (group.size - 1) // group.size  # weights for both passes, and gradients
        self.gradient_factor = group.size  # it averages
        mesh = DeviceMesh.from_group(group.process_group, device.type)
        for layers in sharded_together(model):
            fully_shard(list(layers), mesh=mesh, reshard_after_forward=group.size > 1)  # one alone has nothing to gather again
            for layer in layers:
                # cross-attention projects the memory in it; the others would gather all of them for nothing
                if len(layers) == 1 or isinstance(layer.mixer, AttendsToMemory):
                    register_fsdp_forward_method(layer, "init_state")
        self.module: Any = fully_shard(loss_module, mesh=mesh)

    def backward(self, *, is_last: bool) -> AbstractContextManager[Any]:
        self.module.set_requires_gradient_sync(is_last)
        return nullcontext()

    @contextmanager
    def whole_model(self) -> Iterator[nn.Module]:
        if self.reader is not None:
            self.reader.wait()
            self.reader = None
        model, sharded = self.copy.to(self.device), self.loss_module.model
        model.train(sharded.training)
        with torch.no_grad():
            for copied, weight in zip(model.parameters(), sharded.parameters(), strict=True):
                copied.copy_(whole(weight))
            for ours, theirs in zip(model.buffers(), sharded.buffers(), strict=True):
                ours.copy_(theirs)
        try:
            yield model
        finally:
            with torch.no_grad():
                for ours, theirs in zip(model.buffers(), sharded.buffers(), strict=True):
                    theirs.copy_(ours)
            self.copy.cpu()

    def outdated_model(self) -> nn.Module:
        return self.copy


def sharded_together(model: nn.Module) -> list[tuple[Any, ...]]:
    """The outermost layers whose weights are gathered together: attention and the feed-forward layer after it. Each exchange
    takes the host some time."""
    layers, found = list[Any](), list[tuple[Any, ...]]()
    for module in model.children():
        if isinstance(module, Recomputes):
            layers.append(module)
        else:
            found += sharded_together(module)
    return by_layer_index(layers) + found


def outermost_layers(model: nn.Module) -> list[Any]:
    """The layers of a model. Layers inside another layer are not listed: they may be called once per position."""
    return [layer for layers in sharded_together(model) for layer in layers]


def checkpoint_activations(model: nn.Module) -> None:
    """Compute the activations of each layer again in the backward pass, instead of keeping them."""
    for layer in outermost_layers(model):
        layer.recomputes = True


def check_rows(rows: int, group: Group) -> None:
    """Refuse more processes than a batch has rows: some would have nothing to do, and no state of a stream to carry."""
    if rows < group.size:
        raise UsageError(
            "train.batch_tokens",
            f"a batch has {rows} row{'' if rows == 1 else 's'}, too few for {group.size} processes",
            f"use at most {rows} process{'' if rows == 1 else 'es'} or a larger train.batch_tokens",
        )


def pick_strategy(setting: str, num_parameters: int) -> str:
    """The value of train.parallel that "auto" stands for: "ddp", or "fsdp" for a large model."""
    if setting != "auto":
        return setting
    return "fsdp" if num_parameters >= SHARDED_PARAMETERS else "ddp"
