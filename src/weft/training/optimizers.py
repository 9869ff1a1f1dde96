"""The optimizers of a model, and their states as named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.errors import ConfigError, ModelError
from weft.nn.stack import layer_indices
from weft.parallel.group import ALONE, Group
from weft.parallel.shards import as_part, is_sharded, local, shard_like
from weft.training.config import TrainConfig
from weft.training.muon import Muon
from weft.training.param_groups import LrFactor, lr_factors
from weft.training.step_values import GradientScale


@runtime_checkable
class TakesScale(Protocol):
    """An optimizer that divides gradients by a scale, and skips steps, as torch's GradScaler asks it to: fused ones do."""

    _step_supports_amp_scaling: bool


class Optimizers:
    """One or two torch optimizers for the parameters of a model. Each parameter group has an `lr` and an `lr_factor`.

    Of a sharded weight, torch's own optimizers get the rows that this process holds, as a plain tensor: they compute each
    number by itself, and operations on sharded tensors take the host longer than the GPU. Muon gets the weight.
    """

    def __init__(
        self, optimizers: list[torch.optim.Optimizer], names: dict[Tensor, str], parts: Mapping[Tensor, Tensor] | None = None
    ) -> None:
        self.optimizers, self.names = optimizers, names
        self.parts = {weight: weight for weight in names} | dict(parts or {})  # what the optimizers get for each weight
        self.peak_lrs = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]

    @property
    def weights(self) -> list[Tensor]:
        return list(self.names)

    @property
    def takes_scale(self) -> bool:
        """Whether the optimizers themselves scale gradients and skip steps: not SGD."""
        return all(isinstance(each, TakesScale) for each in self.optimizers)

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds only some rows of the weights."""
        return any(map(is_sharded, self.weights))

    def step(self, factor: float, progress: float = 1.0, scale: GradientScale | None = None) -> None:
        """Make one step, with the peak learning rate of each group times `factor`, and with gradients that `scale` divides. If
        it skips the step, nothing changes, or the gradients are 0 if the optimizers do not take a scale."""
        if scale is not None and not self.takes_scale:
            self._scale_gradients(scale)
            scale = None
        self._give_gradients()
        for optimizer, peak_lrs in zip(self.optimizers, self.peak_lrs, strict=True):
            for group, peak_lr in zip(optimizer.param_groups, peak_lrs, strict=True):
                group["lr"] = peak_lr * factor * group.get("lr_factor", LrFactor()).at(progress)
            if scale is not None:
                scaled: Any = optimizer
                scaled.grad_scale, scaled.found_inf = scale.divisor, scale.skips
            optimizer.step()
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

    def _scale_gradients(self, scale: GradientScale) -> None:
        gradients = [local(weight.grad) for weight in self.weights if weight.grad is not None]
        torch._foreach_div_(gradients, scale.divisor)
        for gradient in gradients:
            gradient.masked_fill_(scale.skips > 0, 0.0)  # replaced, not multiplied: 0 times NaN is NaN

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
        owners = {
            part: optimizer for optimizer in self.optimizers for group in optimizer.param_groups for part in group["params"]
        }
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


def _param_groups(weights: Iterable[Tensor], factors: Mapping[Tensor, LrFactor], decay: float) -> list[dict[str, Any]]:
    """Parameter groups by learning-rate factor. Weight decay applies to matrices, not to biases and norms."""
    groups: dict[tuple[LrFactor, float], list[Tensor]] = {}
    for weight in weights:
        groups.setdefault((factors[weight], decay if weight.dim() >= 2 else 0.0), []).append(weight)
    return [
        {"params": params, "weight_decay": weight_decay, "lr_factor": factor}
        for (factor, weight_decay), params in groups.items()
    ]


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

    def param_groups(weights: Iterable[Tensor]) -> list[dict[str, Any]]:
        return _param_groups(weights, factors, config.weight_decay)

    def local_groups(weights: Iterable[Tensor]) -> list[dict[str, Any]]:
        groups = param_groups(weights)
        parts.update({weight: local(weight) for group in groups for weight in group["params"]})
        return [{**group, "params": [parts[weight] for weight in group["params"]]} for group in groups]

    def adamw(weights: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(local_groups(weights), lr=config.lr, betas=(0.9, config.adam_beta2 or 0.0), fused=True)

    match config.optimizer:
        case "sgd":
            optimizers: list[torch.optim.Optimizer] = [
                torch.optim.SGD(local_groups(names), lr=config.lr, momentum=config.momentum or 0.0)
            ]
        case "muon":
            muon_weights = [weight for weight, name in names.items() if name in muon_names]
            adamw_weights = [weight for weight, name in names.items() if name not in muon_names]
            lr, momentum = config.muon_lr or 0.0, config.momentum or 0.0
            optimizers = [adamw(adamw_weights)] if adamw_weights else []
            if muon_weights:
                groups, decay = param_groups(muon_weights), config.weight_decay
                optimizers.insert(0, Muon(groups, lr=lr, momentum=momentum, weight_decay=decay, group=group))
        case _:
            optimizers = [adamw(names)]
    return Optimizers(optimizers, names, parts)
