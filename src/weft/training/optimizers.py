"""The optimizers of a model, and their states as named tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from weft.errors import ConfigError, ModelError
from weft.nn.stack import layer_indices
from weft.parallel.group import ALONE, Group
from weft.parallel.shards import as_part, is_sharded, local, shard_like
from weft.training.adamw import SGD, AdamW
from weft.training.config import TrainConfig
from weft.training.muon import Muon
from weft.training.param_groups import LrFactor, ParamGroup, lr_factors
from weft.training.step_values import GradientScale


class Optimizer(Protocol):
    """Changes weights, given their gradients."""

    groups: list[ParamGroup]
    state: defaultdict[Tensor, dict[str, Tensor]]  # of each weight that it has changed

    def step(self, scale: GradientScale | None = None) -> None:
        """Make one step, with gradients that `scale` divides. If it skips the step, gradients do not change the weights."""


class Optimizers:
    """One or two optimizers for the parameters of a model.

    Of a sharded weight, AdamW and SGD get the rows that this process holds, as a plain tensor: they compute each number by
    itself, and operations on sharded tensors take the host longer than the GPU. Muon gets the weight.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], names: dict[Tensor, str], parts: Mapping[Tensor, Tensor] | None = None
    ) -> None:
        self.optimizers, self.names = optimizers, names
        self.parts = {weight: weight for weight in names} | dict(parts or {})  # what the optimizers get for each weight

    @property
    def weights(self) -> list[Tensor]:
        return list(self.names)

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds only some rows of the weights."""
        return any(map(is_sharded, self.weights))

    def step(self, factor: float, progress: float = 1.0, scale: GradientScale | None = None) -> None:
        """Make one step, with the peak learning rate of each group times `factor`, and with gradients that `scale` divides."""
        self._give_gradients()
        for optimizer in self.optimizers:
            for group in optimizer.groups:
                group.lr = group.peak_lr * factor * group.lr_factor.at(progress)
            optimizer.step(scale)
        # fused optimizers do not count their changes, and decoders with packed weights ask whether there were any
        torch.autograd.graph.increment_version(self.weights)

    def _give_gradients(self) -> None:
        """Give the rows of each sharded weight their gradients."""
        for weight, part in self.parts.items():
            if part is weight:
                continue
            if local(weight).data_ptr() != part.data_ptr():  # the weight would never change
                raise RuntimeError(f"the rows of {self.names[weight]} have moved to other memory")
            part.grad = None if weight.grad is None else local(weight.grad)

    def zero_grad(self) -> None:
        for weight, part in self.parts.items():
            weight.grad = part.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The state as `parameter/key` tensors; learning rates follow from the run file."""
        states = {part: state for optimizer in self.optimizers for part, state in optimizer.state.items()}
        return {
            f"{name}/{key}": value if key == "step" or is_sharded(value) else as_part(value, weight)
            for weight, name in self.names.items()
            for key, value in states.get(self.parts[weight], {}).items()
        }

    def like(self, name: str) -> Tensor | None:
        """The weight that a tensor of the state is divided like; None for step counters, which all processes have."""
        parameter, _, key = name.rpartition("/")
        return None if key == "step" else {ours: weight for weight, ours in self.names.items()}.get(parameter)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from `tensors`, as `tensors()` returned them."""
        owners = {part: optimizer for optimizer in self.optimizers for group in optimizer.groups for part in group.weights}
        weights = {name: weight for weight, name in self.names.items()}
        for name, value in tensors.items():
            parameter, _, key = name.rpartition("/")
            if parameter not in weights:
                raise ModelError("optimizer state", f"the model has no parameter {parameter!r}")
            weight = weights[parameter]
            part = self.parts[weight]
            if value.shape != (() if key == "step" else weight.shape) or not value.is_floating_point():
                # a fused update would write past the end of a tensor that is too small
                raise ModelError("optimizer state", f"the shape of {name!r}, {list(value.shape)}, does not match its weight")
            # a copy, since updates are in place; fused optimizers need their step counters on the device of the weight
            copy = value.to(weight.device, copy=True)
            divided = copy if key == "step" else shard_like(copy, weight)
            owners[part].state[part][key] = divided if part is weight else local(divided)
        for optimizer in self.optimizers:
            keys = {key for state in optimizer.state.values() for key in state}
            for weight, part in self.parts.items():
                if owners[part] is optimizer and part in optimizer.state and keys.difference(optimizer.state[part]):
                    missing = min(keys.difference(optimizer.state[part]))
                    raise ModelError("optimizer state", f"{self.names[weight]!r} has no {missing!r}")


def _param_groups(
    weights: Iterable[Tensor], factors: Mapping[Tensor, LrFactor], *, lr: float, weight_decay: float
) -> list[ParamGroup]:
    """Parameter groups by learning-rate factor. Weight decay applies to matrices, not to biases and norms."""
    groups: dict[tuple[LrFactor, float], list[Tensor]] = {}
    for weight in weights:
        groups.setdefault((factors[weight], weight_decay if weight.dim() >= 2 else 0.0), []).append(weight)
    return [ParamGroup(params, lr, decay, factor) for (factor, decay), params in groups.items()]


def build_optimizers(model: nn.Module, muon_names: set[str], config: TrainConfig, group: Group = ALONE) -> Optimizers:
    """The optimizers of a resolved [train] table. Muon optimizes the weights `muon_names`. Weights with a learning-rate factor
    of 0 are frozen: no gradient is computed for them. Weights that the model itself has frozen stay so. The processes of a
    group share the work of Muon."""
    parameters = dict(model.named_parameters())
    factors_by_name = lr_factors(parameters, layer_indices(model), config)
    for name, weight in parameters.items():
        weight.requires_grad_(weight.requires_grad and factors_by_name[name].factor > 0)
    names: dict[Tensor, str] = {weight: name for name, weight in parameters.items() if weight.requires_grad}
    if not names:
        raise ConfigError("train.lr_multipliers", "all weights are frozen", "leave some above 0")
    factors = {weight: factors_by_name[name] for weight, name in names.items()}
    parts: dict[Tensor, Tensor] = {}

    def param_groups(weights: Iterable[Tensor], lr: float) -> list[ParamGroup]:
        return _param_groups(weights, factors, lr=lr, weight_decay=config.weight_decay)

    def local_groups(weights: Iterable[Tensor]) -> list[ParamGroup]:
        groups = param_groups(weights, config.lr)
        parts.update({weight: local(weight) for group in groups for weight in group.weights})
        return [replace(group, weights=[parts[weight] for weight in group.weights]) for group in groups]

    def adamw(weights: Iterable[Tensor]) -> AdamW:
        return AdamW(local_groups(weights), beta2=config.adam_beta2 or 0.0)

    match config.optimizer:
        case "sgd":
            optimizers: list[Optimizer] = [SGD(local_groups(names), momentum=config.momentum or 0.0)]
        case "muon":
            muon_weights = [weight for weight, name in names.items() if name in muon_names]
            adamw_weights = [weight for weight, name in names.items() if name not in muon_names]
            optimizers = [adamw(adamw_weights)] if adamw_weights else []
            if muon_weights:
                groups = param_groups(muon_weights, config.muon_lr or 0.0)
                optimizers.insert(0, Muon(groups, momentum=config.momentum or 0.0, process_group=group))
        case _:
            optimizers = [adamw(names)]
    return Optimizers(optimizers, names, parts)
