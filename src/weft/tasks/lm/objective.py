"""The training objective of language models: predict the next token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from weft.data.batching import Batch
from weft.data.corpus import Corpus
from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.nn.state import detach
from weft.tasks.lm.contexts import Context
from weft.tasks.lm.scoring import surprisal
from weft.training.objective import Loss, ProgressCallback


class LanguageModelObjective:
    """Cross-entropy of the next token, over windows, streams or lines."""

    unit = "token"
    monitors = LANGUAGE_VALIDATION
    inner_steps, prepare = 0, None

    def __init__(
        self, *, carry_state: bool, valid: Corpus | None, context: Context, device: torch.device, smoothing: float = 0.0
    ) -> None:
        self.carry_state, self.valid, self.context, self.device, self.smoothing = carry_state, valid, context, device, smoothing

    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> Loss:
        inputs, targets = batch.tokens[:, :-1], batch.tokens[:, 1:]
        losses, state = model.loss(inputs, targets, carry, self.smoothing)  # type: ignore[operator]
        if batch.token_mask is None:
            total, count = losses.sum(), torch.tensor(losses.numel(), device=losses.device)
        else:
            total, count = losses.masked_fill(~batch.token_mask[:, 1:], 0.0).sum(), batch.token_mask[:, 1:].sum()
        return Loss(total, count, detach(state) if self.carry_state else None)

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        if self.valid is None:
            return None
        nll = surprisal(model, self.valid, self.context, device=self.device, progress=progress)
        return {self.monitors[0].name: float(nll.mean(dtype=np.float64))}
