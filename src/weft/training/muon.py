"""Muon: momentum whose matrices are orthogonalised before they are applied (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonal(matrices: Tensor) -> Tensor:
    """Five Newton-Schulz steps towards the nearest semi-orthogonal matrices; (N, rows, columns)."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices  # a CPU without bf16 units would crawl
    tall = x.size(1) > x.size(2)
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        # coefficients of a quintic with a steep slope at 0: small singular values reach 1 within the five steps
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """For the weight matrices inside a network. Matrices of one shape go through one batched call."""

    def __init__(
        self, parameters: Iterable[Tensor] | Iterable[dict[str, Any]], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    alike[weight.shape].append(weight)
            for shape, weights in alike.items():
                gradients = [weight.grad for weight in weights if weight.grad is not None]
                buffers = [self.state[weight].setdefault("momentum", torch.zeros_like(weight)) for weight in weights]
                torch._foreach_lerp_(buffers, gradients, 1.0 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, buffers, group["momentum"])  # Nesterov
                updates = orthogonal(torch.stack(list(ahead)))
                # a tall matrix of unit singular values moves its outputs less: scale it up
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(weights, list(updates.unbind()), alpha=-rate)
