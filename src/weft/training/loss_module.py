"""The one module that the loop ever calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from weft.training.objective import Loss, Objective


class LossModule(nn.Module):
    """The only forward that compile and parallel wrappers ever see."""

    def __init__(self, task: Objective, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any, carry: Any) -> Loss:
        return self.task.loss(self.model, batch, carry)

    @property
    def updates(self) -> int:
        """How many updates are made from one batch of the order."""
        return max(1, self.task.inner)

    def prepared(self, batch: Any, *, seed: int, step: int) -> Any:
        """What is learned from where a batch of the order is due at `step`: the batch itself, or what the task makes of it."""
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
    """A number for each step of each run, unlike the one that dropout follows from: equal ones would draw equal numbers."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))
