"""Optimizers, and their states as named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import ConfigError, ModelError
from weft.nn.stack import layer_indices
from weft.training.config import TrainConfig
from weft.training.muon import Muon
from weft.training.param_groups import LrFactor, lr_factors


class Optimizers:
    """One or two torch optimizers for the parameters of a model. Each parameter group has an `lr` and an `lr_factor`."""

    def __init__(self, parts: list[torch.optim.Optimizer], names: dict[Tensor, str]) -> None:
        self.parts, self.names = parts, names
        self.peak_lrs = [[group["lr"] for group in part.param_groups] for part in parts]

    @property
    def weights(self) -> list[Tensor]:
        return list(self.names)

    def step(self, factor: float, progress: float = 1.0) -> None:
        """Make one step, with the peak learning rate of each group times `factor`."""
        for part, peak_lrs in zip(self.parts, self.peak_lrs, strict=True):
            for group, peak_lr in zip(part.param_groups, peak_lrs, strict=True):
                group["lr"] = peak_lr * factor * group.get("lr_factor", LrFactor()).at(progress)
            part.step()

    def clear(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The state as `parameter/key` tensors; learning rates follow from the run file."""
        return {
            f"{self.names[w]}/{key}": value for part in self.parts for w in part.state for key, value in part.state[w].items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        owners = {self.names[w]: (part, w) for part in self.parts for group in part.param_groups for w in group["params"]}
        for name, value in tensors.items():
            parameter, _, key = name.rpartition("/")
            if parameter not in owners:
                raise ModelError("optimizer state", f"the model has no parameter {parameter!r}")
            part, weight = owners[parameter]
            if value.shape != (() if key == "step" else weight.shape) or not value.is_floating_point():
                # a fused update would write past the end of a tensor that is too small
                raise ModelError("optimizer state", f"the shape of {name!r}, {list(value.shape)}, does not match its weight")
            # a copy, since updates are in place; fused optimizers need their step counters on the device of the weight
            part.state[weight][key] = value.to(weight.device, copy=True)
        for part in self.parts:
            keys = {key for state in part.state.values() for key in state}
            for weight, state in part.state.items():
                if missing := keys.difference(state):
                    raise ModelError("optimizer state", f"{self.names[weight]!r} has no {min(missing)!r}")


def _groups(weights: Iterable[Tensor], factors: Mapping[Tensor, LrFactor], decay: float) -> list[dict[str, Any]]:
    """Parameter groups by learning-rate factor. Weight decay applies to matrices, not to biases and norms."""
    groups: dict[tuple[LrFactor, float], list[Tensor]] = {}
    for weight in weights:
        groups.setdefault((factors[weight], decay if weight.dim() >= 2 else 0.0), []).append(weight)
    return [
        {"params": params, "weight_decay": weight_decay, "lr_factor": factor}
        for (factor, weight_decay), params in groups.items()
    ]


def optimizers(model: nn.Module, matrices: set[str], config: TrainConfig) -> Optimizers:
    """The optimizers of a [train] table with all defaults. `matrices` names the weights for Muon. Weights that never learn are
    frozen: no gradient is computed for them."""
    named = dict(model.named_parameters())
    by_name = lr_factors(named, layer_indices(model), config)
    for name, weight in named.items():
        weight.requires_grad_(by_name[name].factor > 0)
    names: dict[Tensor, str] = {weight: name for name, weight in named.items() if weight.requires_grad}
    if not names:
        raise ConfigError("train.lr_multipliers", "all weights are frozen", "leave some above 0")
    factors = {weight: by_name[name] for weight, name in names.items()}

    def grouped(weights: Iterable[Tensor]) -> list[dict[str, Any]]:
        return _groups(weights, factors, config.weight_decay)

    def adamw(weights: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(grouped(weights), lr=config.lr, betas=(0.9, config.adam_beta2 or 0.0), fused=True)

    match config.optimizer:
        case "sgd":
            parts: list[torch.optim.Optimizer] = [
                torch.optim.SGD(grouped(names), lr=config.lr, momentum=config.momentum or 0.0)
            ]
        case "muon":
            muon_weights = [weight for weight, name in names.items() if name in matrices]
            adamw_weights = [weight for weight, name in names.items() if name not in matrices]
            lr, momentum = config.muon_lr or 0.0, config.momentum or 0.0
            parts = [adamw(adamw_weights)] if adamw_weights else []
            if muon_weights:
                parts.insert(0, Muon(grouped(muon_weights), lr=lr, momentum=momentum, weight_decay=config.weight_decay))
        case _:
            parts = [adamw(names)]
    return Optimizers(parts, names)
