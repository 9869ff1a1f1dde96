"""How much each head matters: by the loss without it, or, at once for all, by the gradient of the loss (Michel et al. 2019).

Shapes: B rows, H heads, T queries, E size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from weft.explain.eval_loss import EvalBatch, loss
from weft.explain.heads import Head, LayerHeads, all_heads, masked_heads
from weft.explain.hooks import differentiable, patch_activations

MEASURES = ("masking", "gradient")
ProgressCallback = Callable[[], None]  # one pass over the data is done


def importance_by_masking(
    model: nn.Module,
    layers: Sequence[LayerHeads],
    parts: Sequence[EvalBatch],
    removed: Collection[Head] = (),
    progress: ProgressCallback | None = None,
) -> dict[Head, float]:
    """By how much the loss grows without each head, where some are `gone` already."""
    with masked_heads(model, layers, removed):
        before = loss(parts)
    found = {}
    for head in (one for one in all_heads(layers) if one not in removed):
        with masked_heads(model, layers, [*removed, head]):
            found[head] = loss(parts) - before
        if progress is not None:
            progress()
    return found


def _slopes(model: nn.Module, layers: Sequence[LayerHeads], part: EvalBatch, removed: Collection[Head]) -> dict[Head, float]:
    """Of each head the sum over rows of |d nats / d share|."""
    fractions = dict[int, Tensor]()

    def scaled(at: int) -> Callable[[Tensor], Tensor]:
        def change(output: Tensor) -> Tensor:  # (B, H, T, E)
            fractions[at] = output.new_ones(*output.shape[:2], 1, 1).requires_grad_()
            return output * fractions[at]

        return change

    names = {f"{one.name}.attend": scaled(at) for at, one in enumerate(layers) if one.heads}
    with masked_heads(model, layers, removed), patch_activations(model, names), differentiable():
        slopes = torch.autograd.grad(part.nats(), list(fractions.values()))
    rows = [slope.double().abs().sum((0, 2, 3)).tolist() for slope in slopes]
    return {Head(at, head): value for at, own in zip(fractions, rows, strict=True) for head, value in enumerate(own)}


def importance_by_gradient(
    model: nn.Module,
    layers: Sequence[LayerHeads],
    parts: Sequence[EvalBatch],
    removed: Collection[Head] = (),
    progress: ProgressCallback | None = None,
) -> dict[Head, float]:
    """The same to first order, in one pass: the mean over rows of |d loss / d share|, where a head's share is 1 with it and 0
    without."""
    found = {head: 0.0 for head in all_heads(layers) if head not in removed}
    for part in parts:
        slopes = _slopes(model, layers, part, removed)
        found = {head: value + slopes[head] for head, value in found.items()}
    if progress is not None:
        progress()
    items = sum(one.items for one in parts)
    return {head: value / items for head, value in found.items()}
