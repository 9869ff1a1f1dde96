"""The training objective of instruction tuning: predict the tokens of responses."""

from __future__ import annotations

from typing import Any

import torch

from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.parallel.group import ALONE
from weft.tasks.responses.batching import Dialogues, ResponseBatch
from weft.tasks.responses.scoring import hidden_states, response_losses
from weft.training.objective import Loss, ProgressCallback


class ResponseObjective:
    """Cross-entropy of the targets of each row."""

    unit = "token"
    monitors = LANGUAGE_VALIDATION
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation

    def __init__(self, *, valid: Dialogues | None, device: torch.device, smoothing: float = 0.0) -> None:
        self.valid, self.device, self.smoothing = valid, device, smoothing

    def loss(self, model: Any, batch: ResponseBatch, carry: None) -> Loss:
        y, penalties = hidden_states(model, batch)
        is_target = batch.is_target[:, 1:]
        losses = model.head.loss(y, batch.tokens[:, 1:], self.smoothing).masked_fill(~is_target, 0.0)
        penalty = None if penalties is None else penalties.masked_fill(~is_target, 0.0).sum()
        return Loss(losses.sum(), is_target.sum(), None, (batch.tokens > 0).sum(), penalty)

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        if self.valid is None:
            return None
        nats, counts = response_losses(model, self.valid, self.device, progress, self.group)
        return {self.monitors[0].name: float(nats.sum() / counts.sum())}
