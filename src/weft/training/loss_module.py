"""The module that the training loop calls: from a batch to its loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from weft.nn.experts import expert_layers
from weft.parallel.group import Group
from weft.training.expert_log import add_balance_loss
from weft.training.objective import Loss, Objective


class LossModule(nn.Module):
    """Objective and model in one module, so that torch.compile sees the whole forward pass."""

    def __init__(self, objective: Objective, model: nn.Module) -> None:
        super().__init__()
        self.objective, self.model = objective, model
        self.group = Group()  # the processes that compute parts of the same micro-batch
        self.expert_layers = list(expert_layers(model).values())

    def forward(self, batch: Any, carry: Any, counts: bool = True) -> Loss:
        """The loss of the objective; experts add the load-balancing loss to its penalty. Without `counts`, the rows belong to
        another process and count nothing here."""
        for layer in self.expert_layers:
            layer.start_recording()
        loss = self.objective.loss(self.model, batch, carry)
        loss = loss if counts else loss.without_rows()
        return add_balance_loss(loss, self.expert_layers, self.group, counts=counts) if self.expert_layers else loss

    @property
    def steps_per_batch(self) -> int:
        """The number of optimizer steps per batch of the sampler."""
        return max(1, self.objective.inner_steps)

    def prepare_batch(self, batch: Any, *, seed: int, step: int, model: nn.Module | None = None) -> Any:
        """The training batch at `step`: the batch of the sampler, or the one that the objective prepares from it, with `model`
        if the weights of the model are sharded."""
        if self.objective.prepare is None:
            return batch
        model = self.model if model is None else model
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                return self.objective.prepare(model, batch, seed=_mix_seed(seed, step))
        finally:
            model.train(training)


def _mix_seed(seed: int, step: int) -> int:
    """The seed to prepare a batch with. The seed of the step would give the same random numbers as its dropout."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))
