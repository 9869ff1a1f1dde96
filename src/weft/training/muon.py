"""Muon: momentum with orthogonalized update matrices (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from weft.parallel.group import ALONE, Group
from weft.parallel.shards import is_sharded, local
from weft.training.muon_exchange import gather_matrices, matrices_to_rows, rows_to_matrices


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


def orthogonalize_together(matrices: Tensor, group: Group, *, sharded_rows: int | None, replicated: bool) -> Tensor:
    """`orthogonalize` with the work divided among the processes of a group.

    Args:
        matrices: (N, rows, columns): all of them, or those that this process holds.
        group: The processes.
        sharded_rows: The number of rows of a whole matrix, if each process holds some rows of every matrix.
        replicated: Whether every process holds all matrices.

    Returns:
        The result for what `matrices` holds.
    """
    if group.size == 1 or (sharded_rows is None and not replicated):  # sharded experts: whole matrices that no other one holds
        return orthogonalize(matrices)
    if sharded_rows is None:
        return gather_matrices(orthogonalize(matrices[group.rank :: group.size]), matrices, group)
    return matrices_to_rows(orthogonalize(rows_to_matrices(matrices, sharded_rows, group)), matrices, sharded_rows, group)


class Muon(torch.optim.Optimizer):
    """Muon for the weight matrices of hidden layers. Matrices of the same shape are updated in one batched call. The processes
    of a group each orthogonalize some of them."""

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        group: Group = ALONE,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.group = group

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for shape, weights in by_shape.items():
                gradients = [local(weight.grad) for weight in weights if weight.grad is not None]
                buffers = [local(self.state[weight].setdefault("momentum", torch.zeros_like(weight))) for weight in weights]
                torch._foreach_lerp_(buffers, gradients, 1.0 - group["momentum"])
                nesterov = torch._foreach_lerp(gradients, buffers, group["momentum"])
                # a weight with three axes has one matrix per expert
                matrices = torch.stack(list(nesterov)).flatten(0, -3)
                rows = shape[0] if len(shape) == 2 and is_sharded(weights[0]) else None
                updates = orthogonalize_together(matrices, self.group, sharded_rows=rows, replicated=not is_sharded(weights[0]))
                updates = updates.view(len(weights), *nesterov[0].shape)
                # a tall matrix with unit singular values changes its outputs less: scale it up
                lr = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
                parts = [local(weight) for weight in weights]
                torch._foreach_mul_(parts, 1.0 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parts, list(updates.unbind()), alpha=-lr)
