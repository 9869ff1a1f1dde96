"""The load of experts during training: the load-balancing loss, and statistics for metrics.jsonl."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.nn.experts import ExpertLoad, RoutesTokens
from weft.parallel.group import ALONE, Group
from weft.training.objective import Loss


def add_balance_loss(loss: Loss, layers: Sequence[RoutesTokens], group: Group = ALONE, *, counts: bool = True) -> Loss:
    """The loss of a batch with the load-balancing losses of these layers in its penalty. As the penalty is a sum over items, a
    balance loss counts once per item: the loop divides by their number.

    If a group computes parts of one batch, the balance is that of the whole batch, and the penalties of all processes sum up to
    its penalty. Without `counts`, the rows of this process belong to another one.
    """
    loads = [layer.stop_recording() for layer in layers]
    if not counts:
        loads = [ExpertLoad(*(0 * part for part in load)) for load in loads]
    balances = [load.balance_loss() for load in loads]
    num_items, losses = loss.count, balances
    if group.size > 1:
        num_items, wholes = _sum_loads(loss.count, loads, group)
        # the fractions are those of the whole batch, the summed probabilities those of this process
        shares = [whole._replace(probs=load.probs) for whole, load in zip(wholes, loads, strict=True)]
        balances, losses = [share.balance_loss() for share in shares], [whole.balance_loss() for whole in wholes]
    weighted = [layer.balance_loss_weight * balance for layer, balance in zip(layers, balances, strict=True)]
    penalty = num_items * torch.stack(weighted).sum()
    return Loss(
        loss.total,
        loss.count,
        loss.carry,
        loss.tokens,
        penalty if loss.penalty is None else loss.penalty + penalty,
        tuple(load.counts.detach() for load in loads),
        torch.stack(losses).mean().detach(),
    )


@torch._disable_dynamo  # type: ignore[attr-defined]  # unlike torch.compiler.disable, it does not import the compiler
def _sum_loads(count: Tensor, loads: Sequence[ExpertLoad], group: Group) -> tuple[Tensor, list[ExpertLoad]]:
    """The number of items and the loads of all processes, without gradients."""
    parts = [part.detach().reshape(-1) for load in loads for part in load]
    summed = group.sum_(torch.cat([count.detach().reshape(1).to(parts[0].dtype), *parts]))
    sizes = [1, *(part.numel() for part in parts)]
    num_items, *values = torch.split(summed, sizes)
    triples = zip(values[0::3], values[1::3], values[2::3], strict=True)
    return num_items[0], [ExpertLoad(counts, probs, tokens[0]) for counts, probs, tokens in triples]


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

    def sum_(self, group: Group) -> None:
        """Add the loads of all processes; all of them must call it."""
        if self.balance_loss is None or self.num_items is None or group.size == 1:
            return
        parts = [self.balance_loss, self.num_items, *self.counts]
        summed = group.sum_(torch.cat([part.double().reshape(-1) for part in parts]))
        values = torch.split(summed, [part.numel() for part in parts])
        self.balance_loss, self.num_items, self.counts = values[0][0], values[1][0], list(values[2:])

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
