"""Muon: momentum with orthogonalized update matrices (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonalize(matrices: Tensor) -> Tensor:
    """Approximate the nearest semi-orthogonal matrices with five Newton-Schulz steps; (N, rows, columns)."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices  # bfloat16 is slow on CPUs without support for it
    is_tall = x.size(1) > x.size(2)
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        # coefficients of a quintic with a steep slope at 0: small singular values reach 1 within the five steps
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.mT if is_tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Muon for the weight matrices of hidden layers. Matrices of the same shape are updated in one batched call."""

    def __init__(
        self, parameters: Iterable[Tensor] | Iterable[dict[str, Any]], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for shape, weights in by_shape.items():
                gradients = [weight.grad for weight in weights if weight.grad is not None]
                buffers = [self.state[weight].setdefault("momentum", torch.zeros_like(weight)) for weight in weights]
                torch._foreach_lerp_(buffers, gradients, 1.0 - group["momentum"])
                nesterov = torch._foreach_lerp(gradients, buffers, group["momentum"])
                # a weight with three axes has one matrix per expert
                matrices = torch.stack(list(nesterov)).flatten(0, -3)
                updates = orthogonalize(matrices).view(len(weights), *shape)
                # a tall matrix with unit singular values changes its outputs less: scale it up
                lr = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
                torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(weights, list(updates.unbind()), alpha=-lr)
