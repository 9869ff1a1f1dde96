"""The load of experts during training: the load-balancing loss, and statistics for metrics.jsonl."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.nn.experts import RoutesTokens
from weft.training.objective import Loss


def add_balance_loss(loss: Loss, layers: Sequence[RoutesTokens]) -> Loss:
    """The loss of a batch with the load-balancing losses of these layers in its penalty. As the penalty is a sum over items, a
    balance loss counts once per item: the loop divides by their number."""
    loads = [layer.stop_recording() for layer in layers]
    losses = [load.balance_loss() for load in loads]
    weighted = [layer.balance_loss_weight * balance for layer, balance in zip(layers, losses, strict=True)]
    penalty = loss.count * torch.stack(weighted).sum()
    return Loss(
        loss.total,
        loss.count,
        loss.carry,
        loss.tokens,
        penalty if loss.penalty is None else loss.penalty + penalty,
        tuple(load.counts.detach() for load in loads),
        torch.stack(losses).mean().detach(),
    )


class ExpertLog:
    """The load of the experts in the latest step, over its micro-batches."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.counts: list[Tensor] = []
        self.balance_loss: Tensor | None = None  # summed over items
        self.num_items: Tensor | None = None

    def add(self, loss: Loss) -> None:
        """Add the load of a micro-batch."""
        if loss.balance_loss is None:
            return
        summed = loss.balance_loss * loss.count
        if self.balance_loss is None or self.num_items is None:
            self.counts, self.balance_loss, self.num_items = list(loss.expert_counts), summed, loss.count
            return
        self.counts = [before + new for before, new in zip(self.counts, loss.expert_counts, strict=True)]
        self.balance_loss, self.num_items = self.balance_loss + summed, self.num_items + loss.count

    def record(self) -> dict[str, float]:
        """The statistics of the step for metrics.jsonl; empty for a model without experts. The load of an expert is the
        fraction of the work of its layer that it does: 1 / E if the load is balanced. Layers count from 1, in model order."""
        if self.balance_loss is None or self.num_items is None:
            return {}
        record = {"balance_loss": float(self.balance_loss / self.num_items.clamp(min=1))}
        for layer, counts in enumerate(self.counts, 1):
            load = counts / counts.sum().clamp(min=1)
            record |= {f"expert_load_min_{layer}": float(load.min()), f"expert_load_max_{layer}": float(load.max())}
        return record
