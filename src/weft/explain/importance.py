"""How much each head matters: by the loss without it, or, at once for all, by the gradient of the loss (Michel et al. 2019).

Shapes: B rows, H heads, T queries, E size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from weft.explain.heads import Head, Heads, every, without
from weft.explain.held_loss import Portion, loss
from weft.explain.watch import differentiable, replaced

MEASURES = ("masking", "gradient")
Told = Callable[[], None]  # one pass over the data is done


def by_masking(
    model: nn.Module, layers: Sequence[Heads], parts: Sequence[Portion], gone: Collection[Head] = (), told: Told | None = None
) -> dict[Head, float]:
    """By how much the loss grows without each head, where some are `gone` already."""
    with without(model, layers, gone):
        before = loss(parts)
    found = {}
    for head in (one for one in every(layers) if one not in gone):
        with without(model, layers, [*gone, head]):
            found[head] = loss(parts) - before
        if told is not None:
            told()
    return found


def _slopes(model: nn.Module, layers: Sequence[Heads], part: Portion, gone: Collection[Head]) -> dict[Head, float]:
    """Of each head the sum over rows of |d nats / d share|."""
    shares = dict[int, Tensor]()

    def scaled(at: int) -> Callable[[Tensor], Tensor]:
        def change(output: Tensor) -> Tensor:  # (B, H, T, E)
            shares[at] = output.new_ones(*output.shape[:2], 1, 1).requires_grad_()
            return output * shares[at]

        return change

    names = {f"{one.name}.attend": scaled(at) for at, one in enumerate(layers) if one.heads}
    with without(model, layers, gone), replaced(model, names), differentiable():
        slopes = torch.autograd.grad(part.nats(), list(shares.values()))
    rows = [slope.double().abs().sum((0, 2, 3)).tolist() for slope in slopes]
    return {Head(at, head): value for at, own in zip(shares, rows, strict=True) for head, value in enumerate(own)}


def by_gradient(
    model: nn.Module, layers: Sequence[Heads], parts: Sequence[Portion], gone: Collection[Head] = (), told: Told | None = None
) -> dict[Head, float]:
    """The same to first order, in one pass: the mean over rows of |d loss / d share|, where a head's share is 1 with it and 0
    without."""
    found = {head: 0.0 for head in every(layers) if head not in gone}
    for part in parts:
        slopes = _slopes(model, layers, part, gone)
        found = {head: value + slopes[head] for head, value in found.items()}
    if told is not None:
        told()
    items = sum(one.items for one in parts)
    return {head: value / items for head, value in found.items()}
