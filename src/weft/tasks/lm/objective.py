"""The training objective of language models: predict the next token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.data.batching import Batch
from weft.data.corpus import Corpus
from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.nn.state import detach
from weft.parallel.group import ALONE
from weft.tasks.lm.contexts import Context
from weft.tasks.lm.scoring import surprisal
from weft.training.distillation import Outputs, smoothed_nll
from weft.training.objective import Loss, ProgressCallback


def _target_mask(batch: Batch) -> Tensor | None:
    """bool (B, T), False on padding; None: no padding."""
    return None if batch.token_mask is None else batch.token_mask[:, 1:]


def _sum_tokens(values: Tensor, batch: Batch) -> Tensor:
    """The sum of the values (B, T) of all targets of a batch, without padding."""
    return values.sum() if batch.token_mask is None else values.masked_fill(~batch.token_mask[:, 1:], 0.0).sum()


class LanguageModelObjective:
    """Cross-entropy of the next token, over windows, streams or lines."""

    unit = "token"
    monitors = LANGUAGE_VALIDATION
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation

    def __init__(
        self, *, carry_state: bool, valid: Corpus | None, context: Context, device: torch.device, smoothing: float = 0.0
    ) -> None:
        self.carry_state, self.valid, self.context, self.device, self.smoothing = carry_state, valid, context, device, smoothing

    def loss(self, model: Any, batch: Batch, carry: Any) -> Loss:
        y, penalties, state = model.penalized(batch.tokens[:, :-1], carry, _target_mask(batch))
        return self._sum(model.head.loss(y, batch.tokens[:, 1:], self.smoothing), penalties, state, batch)

    def outputs(self, model: Any, batch: Batch, carry: Any) -> Outputs:
        y, penalties, state = model.penalized(batch.tokens[:, :-1], carry, _target_mask(batch))
        log_probs = model.head(y)
        losses = smoothed_nll(log_probs, batch.tokens[:, 1:], self.smoothing)
        return Outputs(log_probs, self._sum(losses, penalties, state, batch), _target_mask(batch))

    def _sum(self, losses: Tensor, penalties: Tensor | None, state: Any, batch: Batch) -> Loss:
        """The loss of a batch from losses (B, T) and penalties (B, T)."""
        penalty = None if penalties is None else _sum_tokens(penalties, batch)
        count = (
            torch.full((), losses.numel(), device=losses.device) if batch.token_mask is None else batch.token_mask[:, 1:].sum()
        )
        return Loss(_sum_tokens(losses, batch), count, detach(state) if self.carry_state else None, penalty=penalty)

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        if self.valid is None:
            return None
        nll = surprisal(model, self.valid, self.context, device=self.device, progress=progress, group=self.group)
        return {self.monitors[0].name: float(nll.mean(dtype=np.float64))}
