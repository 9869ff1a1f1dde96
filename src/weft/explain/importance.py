"""Importance of attention heads: the increase of the loss without a head, or its gradient-based estimate (Michel et al. 2019).

Shapes: B rows, H heads, T queries, E head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from weft.explain.eval_loss import EvalBatch, mean_loss
from weft.explain.heads import Head, LayerHeads, all_heads, masked_heads
from weft.explain.hooks import differentiable, patch_activations

MEASURES = ("masking", "gradient")
ProgressCallback = Callable[[], None]  # called after each pass over the data


def importance_by_masking(
    model: nn.Module,
    layers: Sequence[LayerHeads],
    batches: Sequence[EvalBatch],
    removed: Collection[Head] = (),
    progress: ProgressCallback | None = None,
) -> dict[Head, float]:
    """The increase of the loss if a head is masked, for each head that is not `removed`."""
    with masked_heads(model, layers, removed):
        base_loss = mean_loss(batches)
    importance = {}
    for head in (head for head in all_heads(layers) if head not in removed):
        with masked_heads(model, layers, [*removed, head]):
            importance[head] = mean_loss(batches) - base_loss
        if progress is not None:
            progress()
    return importance


def _gate_gradients(
    model: nn.Module, layers: Sequence[LayerHeads], batch: EvalBatch, removed: Collection[Head]
) -> dict[Head, float]:
    """The sum over rows of |d loss / d gate| for each head, where a gate of 1 multiplies the output of the head."""
    gates = dict[int, Tensor]()

    def multiply_by_gate(layer: int) -> Callable[[Tensor], Tensor]:
        def patch(output: Tensor) -> Tensor:  # (B, H, T, E)
            gates[layer] = output.new_ones(*output.shape[:2], 1, 1).requires_grad_()
            return output * gates[layer]

        return patch

    patches = {f"{layer.name}.attend": multiply_by_gate(i) for i, layer in enumerate(layers) if layer.num_heads}
    with masked_heads(model, layers, removed), patch_activations(model, patches), differentiable():
        gradients = torch.autograd.grad(batch.total_loss(), list(gates.values()))
    sums = [gradient.double().abs().sum((0, 2, 3)).tolist() for gradient in gradients]
    return {Head(layer, head): value for layer, row in zip(gates, sums, strict=True) for head, value in enumerate(row)}


def importance_by_gradient(
    model: nn.Module,
    layers: Sequence[LayerHeads],
    batches: Sequence[EvalBatch],
    removed: Collection[Head] = (),
    progress: ProgressCallback | None = None,
) -> dict[Head, float]:
    """A first-order estimate of `importance_by_masking` in one pass: the mean over items of |d loss / d gate|, where the gate
    of a head is 1 with it and 0 without."""
    totals = {head: 0.0 for head in all_heads(layers) if head not in removed}
    for batch in batches:
        gradients = _gate_gradients(model, layers, batch, removed)
        totals = {head: total + gradients[head] for head, total in totals.items()}
    if progress is not None:
        progress()
    num_items = sum(batch.num_items for batch in batches)
    return {head: total / num_items for head, total in totals.items()}
