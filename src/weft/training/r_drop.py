"""R-Drop (Liang et al. 2021): the predictions of a model with two dropout masks should agree.

    (cross-entropy_1 + cross-entropy_2) / 2 + w / 4 * (KL(p_1 || p_2) + KL(p_2 || p_1))

This is half of the paper's loss, so that the cross-entropy is that of ordinary training; w is its alpha.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weft.data.batch import map_tensors
from weft.training.distillation import DistillableObjective, kl_divergence
from weft.training.objective import Loss, ProgressCallback


class RDropObjective:
    """An objective with R-Drop. A batch passes the model once, with every row twice: rows have dropout masks of their own. The
    reported loss is the cross-entropy alone."""

    inner_steps, prepare, augment = 0, None, None

    def __init__(self, objective: DistillableObjective, weight: float) -> None:
        self.objective, self.weight = objective, weight
        self.unit, self.monitors = objective.unit, objective.monitors

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> Loss:
        log_probs, loss, mask = self.objective.outputs(model, map_tensors(batch, lambda part: torch.cat([part, part])), carry)
        first, second = log_probs.chunk(2)
        divergence = kl_divergence(first, second) + kl_divergence(second, first)
        if mask is not None:
            divergence = divergence.masked_fill(~mask[: len(divergence)], 0.0)
        penalty = self.weight / 4 * divergence.sum()
        if loss.penalty is not None:
            penalty = penalty + loss.penalty / 2
        tokens = None if loss.tokens is None else loss.tokens // 2
        return Loss(loss.total / 2, loss.count // 2, loss.carry, tokens, penalty)

    def validate(self, model: nn.Module, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        return self.objective.validate(model, progress)
