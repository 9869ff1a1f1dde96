"""Optimisers, and their states as plain named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from weft.errors import ModelError
from weft.train.muon import Muon
from weft.train.tables import TrainTable


class Optimizers:
    """One or two optimisers that share out a model's parameters, behind one step."""

    def __init__(self, parts: list[torch.optim.Optimizer], names: dict[Tensor, str]) -> None:
        self.parts, self.names = parts, names
        self.rates = [[group["lr"] for group in part.param_groups] for part in parts]

    @property
    def weights(self) -> list[Tensor]:
        return list(self.names)

    def step(self, factor: float) -> None:
        """One update, at each group's own rate times `factor`."""
        for part, rates in zip(self.parts, self.rates, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * factor
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
                raise ModelError(f"optimizer state: {parameter!r} is no parameter of this model")
            part, weight = owners[parameter]
            if value.shape != (() if key == "step" else weight.shape) or not value.is_floating_point():
                # a fused update would write past the end of one that is too small
                raise ModelError(f"optimizer state: {name!r} has the shape {list(value.shape)}, which does not fit its weight")
            # a copy, since updates are in place; fused optimisers want their step counters beside the weight too
            part.state[weight][key] = value.to(weight.device, copy=True)
        for part in self.parts:
            keys = {key for state in part.state.values() for key in state}
            for weight, state in part.state.items():
                if missing := keys.difference(state):
                    raise ModelError(f"optimizer state: {self.names[weight]!r} has no {min(missing)!r}")


def _groups(weights: Iterable[Tensor], decay: float) -> list[dict[str, object]]:
    """Matrices decay; biases, norms and gains do not."""
    parts = list(weights)
    matrices, vectors = [w for w in parts if w.dim() >= 2], [w for w in parts if w.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _adamw(weights: Iterable[Tensor], table: TrainTable) -> torch.optim.Optimizer:
    return torch.optim.AdamW(_groups(weights, table.weight_decay), lr=table.lr, betas=(0.9, table.beta2 or 0.0), fused=True)


def optimizers(model: nn.Module, matrices: set[str], table: TrainTable) -> Optimizers:
    """The optimisers of a filled table; `matrices` names the weights that Muon is for."""
    names: dict[Tensor, str] = {weight: name for name, weight in model.named_parameters()}
    match table.optimizer:
        case "sgd":
            groups = _groups(names, table.weight_decay)
            parts: list[torch.optim.Optimizer] = [torch.optim.SGD(groups, lr=table.lr, momentum=table.momentum or 0.0)]
        case "muon":
            inside = [weight for weight, name in names.items() if name in matrices]
            others = [weight for weight, name in names.items() if name not in matrices]
            muon = Muon(inside, lr=table.matrix_lr or 0.0, momentum=table.momentum or 0.0, weight_decay=table.weight_decay)
            parts = [muon, _adamw(others, table)]
        case _:
            parts = [_adamw(names, table)]
    return Optimizers(parts, names)
