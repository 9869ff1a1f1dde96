"""The one module that the loop ever calls."""

from __future__ import annotations

from typing import Any

from torch import nn

from weft.tasks.task import Loss, Task


class Learner(nn.Module):
    """The only forward that compile and parallel wrappers ever see."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any, carry: Any) -> Loss:
        return self.task.loss(self.model, batch, carry)
