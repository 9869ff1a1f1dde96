"""Optimisers, and their states as plain named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import ConfigError, ModelError
from weft.nn.stack import layer_numbers
from weft.training.config import TrainConfig
from weft.training.muon import Muon
from weft.training.param_groups import LrFactor, lr_factors


class Optimizers:
    """One or two optimisers that share out a model's parameters, behind one step. Each group has a `lr` and a `rate`, by which
    it is multiplied."""

    def __init__(self, parts: list[torch.optim.Optimizer], names: dict[Tensor, str]) -> None:
        self.parts, self.names = parts, names
        self.rates = [[group["lr"] for group in part.param_groups] for part in parts]

    @property
    def weights(self) -> list[Tensor]:
        return list(self.names)

    def step(self, factor: float, progress: float = 1.0) -> None:
        """One update, at each group's own rate times `factor`."""
        for part, rates in zip(self.parts, self.rates, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * factor * group.get("rate", LrFactor()).at(progress)
            part.step()

    def clear(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, by `parameter/key`; rates and schedules are rebuilt from the run file."""
        return {
            f"{self.names[w]}/{key}": value for part in self.parts for w in part.state for key, value in part.state[w].items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        owners = {self.names[w]: (part, w) for part in self.parts for group in part.param_groups for w in group["params"]}
        for name, value in tensors.items():
            parameter, _, key = name.rpartition("/")
            if parameter not in owners:
                raise ModelError("optimizer state", f"{parameter!r} is no parameter of this model")
            part, weight = owners[parameter]
            if value.shape != (() if key == "step" else weight.shape) or not value.is_floating_point():
                # a fused update would write past the end of one that is too small
                raise ModelError(
                    "optimizer state", f"{name!r} has the shape {list(value.shape)}, which does not fit its weight"
                )
            # a copy, since updates are in place; fused optimisers want their step counters beside the weight too
            part.state[weight][key] = value.to(weight.device, copy=True)
        for part in self.parts:
            keys = {key for state in part.state.values() for key in state}
            for weight, state in part.state.items():
                if missing := keys.difference(state):
                    raise ModelError("optimizer state", f"{self.names[weight]!r} has no {min(missing)!r}")


def _groups(weights: Iterable[Tensor], rates: Mapping[Tensor, LrFactor], decay: float) -> list[dict[str, Any]]:
    """Weights of one rate together. Matrices decay; biases, norms and gains do not."""
    groups: dict[tuple[LrFactor, float], list[Tensor]] = {}
    for weight in weights:
        groups.setdefault((rates[weight], decay if weight.dim() >= 2 else 0.0), []).append(weight)
    return [{"params": parts, "weight_decay": decays, "rate": rate} for (rate, decays), parts in groups.items()]


def optimizers(model: nn.Module, matrices: set[str], config: TrainConfig) -> Optimizers:
    """The optimisers of a filled table; `matrices` names the weights that Muon is for. What never learns is frozen: no
    gradient is computed for it."""
    named = dict(model.named_parameters())
    by_name = lr_factors(named, layer_numbers(model), config)
    for name, weight in named.items():
        weight.requires_grad_(by_name[name].factor > 0)
    names: dict[Tensor, str] = {weight: name for name, weight in named.items() if weight.requires_grad}
    if not names:
        raise ConfigError("train.lr_multipliers", "every weight is frozen", "there is nothing to train")
    rates = {weight: by_name[name] for weight, name in names.items()}

    def grouped(weights: Iterable[Tensor]) -> list[dict[str, Any]]:
        return _groups(weights, rates, config.weight_decay)

    def adamw(weights: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(grouped(weights), lr=config.lr, betas=(0.9, config.adam_beta2 or 0.0), fused=True)

    match config.optimizer:
        case "sgd":
            parts: list[torch.optim.Optimizer] = [
                torch.optim.SGD(grouped(names), lr=config.lr, momentum=config.momentum or 0.0)
            ]
        case "muon":
            inside = [weight for weight, name in names.items() if name in matrices]
            others = [weight for weight, name in names.items() if name not in matrices]
            rate, momentum = config.muon_lr or 0.0, config.momentum or 0.0
            parts = [adamw(others)] if others else []
            if inside:
                parts.insert(0, Muon(grouped(inside), lr=rate, momentum=momentum, weight_decay=config.weight_decay))
        case _:
            parts = [adamw(names)]
    return Optimizers(parts, names)
