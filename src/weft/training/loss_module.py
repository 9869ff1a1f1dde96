"""The module that the training loop calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from weft.training.objective import Loss, Objective


class LossModule(nn.Module):
    """Objective and model in one module: the only forward that compilers and parallel wrappers see."""

    def __init__(self, task: Objective, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any, carry: Any) -> Loss:
        return self.task.loss(self.model, batch, carry)

    @property
    def updates(self) -> int:
        """The number of steps per batch of the sampler."""
        return max(1, self.task.inner)

    def prepared(self, batch: Any, *, seed: int, step: int) -> Any:
        """The training batch at `step`: the batch of the sampler, or the one that the objective prepares from it."""
        if self.task.prepare is None:
            return batch
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return self.task.prepare(self.model, batch, seed=_mixed(seed, step))
        finally:
            self.model.train(training)


def _mixed(seed: int, step: int) -> int:
    """A seed per step that differs from the one for dropout: equal seeds would give equal random numbers."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))
