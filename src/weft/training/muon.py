"""Muon: momentum with orthogonalized update matrices (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from weft.parallel.group import ALONE, Group
from weft.parallel.shards import is_sharded, local
from weft.training.muon_exchange import gather_matrices, matrices_to_rows, rows_to_matrices
from weft.training.param_groups import ParamGroup
from weft.training.step_values import GradientScale


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


class StepScalars(NamedTuple):
    """The numbers of one step on the device of the weights, all (): compiled code would be compiled again for other numbers."""

    factor: Tensor  # of the gradients
    keeps: Tensor  # 1; 0: change nothing, whatever the gradients are
    lr: Tensor
    decay: Tensor  # learning rate times weight decay


def _nesterov(gradient: Tensor, buffer: Tensor, scalars: StepScalars, momentum: float) -> Tensor:
    """Add a gradient that is yet to be scaled to the momentum buffer, and return Nesterov's momentum."""
    # replaced, not multiplied: 0 times NaN is NaN
    gradient = torch.where(scalars.keeps > 0, gradient * scalars.factor, 0.0)
    buffer.lerp_(gradient, (1.0 - momentum) * scalars.keeps)
    return torch.lerp(gradient, buffer, momentum)


def scaled_update(
    weights: list[Tensor],
    gradients: list[Tensor],
    buffers: list[Tensor],
    scalars: StepScalars,
    *,
    momentum: float,
    orthogonalize: Callable[[Tensor], Tensor] = orthogonalize,
) -> None:
    """The step of `Muon` for weights of one shape, with gradients that are yet to be scaled, without waiting for a number."""
    _, keeps, lr, decay = scalars
    if torch.compiler.is_compiling():  # one kernel per weight: those of a stack would begin with copies
        parts = [_nesterov(*pair, scalars, momentum) for pair in zip(gradients, buffers, strict=True)]
        nesterov = torch.stack(parts)
    else:
        buffer = torch.stack(buffers)
        nesterov = _nesterov(torch.stack(gradients), buffer, scalars, momentum)
        torch._foreach_copy_(buffers, list(buffer.unbind()))
    updates = orthogonalize(nesterov.flatten(0, -3)).view_as(nesterov)
    torch._foreach_mul_(weights, 1.0 - decay * keeps)
    torch._foreach_add_(weights, list((updates * (-lr * keeps)).unbind()))


class Muon:
    """Muon for the weight matrices of hidden layers. Matrices of the same shape are updated in one batched call. The processes
    of a group each orthogonalize some of them."""

    def __init__(self, groups: list[ParamGroup], *, momentum: float, process_group: Group = ALONE) -> None:
        self.groups, self.momentum, self.process_group = groups, momentum, process_group
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)
        self.scaled_update = scaled_update  # or that function compiled

    @torch.no_grad()
    def step(self, scale: GradientScale | None = None) -> None:
        """Change the weights, with gradients that `scale` divides, unless it skips the step."""
        for group in self.groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group.with_gradients():
                by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                if scale is None:
                    self._update(group, weights)
                else:
                    self._scaled_update(group, weights, scale)

    def _buffers(self, weights: Sequence[Tensor]) -> list[Tensor]:
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        return [local(self.state[weight]["momentum"]) for weight in weights]

    def _update(self, group: ParamGroup, weights: Sequence[Tensor]) -> None:
        """One step of weights of the same shape."""
        shape = weights[0].shape
        gradients = [local(weight.grad) for weight in weights if weight.grad is not None]
        buffers = self._buffers(weights)
        torch._foreach_lerp_(buffers, gradients, 1.0 - self.momentum)
        nesterov = torch._foreach_lerp(gradients, buffers, self.momentum)
        # a weight with three axes has one matrix per expert
        matrices = torch.stack(list(nesterov)).flatten(0, -3)
        updates = self._shared_work(weights[0])(matrices)
        updates = updates.view(len(weights), *nesterov[0].shape)
        parts = [local(weight) for weight in weights]
        torch._foreach_mul_(parts, 1.0 - group.lr * group.weight_decay)
        torch._foreach_add_(parts, list(updates.unbind()), alpha=-_scaled_lr(group.lr, shape))

    def _scaled_update(self, group: ParamGroup, weights: list[Tensor], scale: GradientScale) -> None:
        """`_update` with gradients that are yet to be scaled."""
        gradients = [local(weight.grad) for weight in weights if weight.grad is not None]
        scalars = StepScalars(
            scale.divisor.reciprocal(),
            1.0 - scale.skips,
            scale.skips.new_full((), _scaled_lr(group.lr, weights[0].shape)),
            scale.skips.new_full((), group.lr * group.weight_decay),
        )
        parts, buffers = [local(weight) for weight in weights], self._buffers(weights)
        if self.process_group.size == 1:
            self.scaled_update(parts, gradients, buffers, scalars, momentum=self.momentum)
        else:
            share = self._shared_work(weights[0])
            scaled_update(parts, gradients, buffers, scalars, momentum=self.momentum, orthogonalize=share)

    def _shared_work(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """`orthogonalize` of weights of this shape, by all processes of the group."""
        rows = weight.size(0) if weight.dim() == 2 and is_sharded(weight) else None
        return partial(orthogonalize_together, group=self.process_group, sharded_rows=rows, replicated=not is_sharded(weight))


def _scaled_lr(lr: float, shape: torch.Size) -> float:
    """The learning rate of a matrix: one that is tall, with unit singular values, changes its outputs less."""
    return float(lr * max(1.0, shape[-2] / shape[-1]) ** 0.5)
