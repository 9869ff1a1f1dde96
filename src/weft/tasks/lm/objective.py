"""The task of language models: predict each next token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from weft.data.corpus import Corpus
from weft.data.order import Batch
from weft.metrics.language import LANGUAGE_VALIDATION
from weft.nn.state import detach
from weft.tasks.lm.contexts import Context
from weft.tasks.lm.scoring import surprisal
from weft.train.objective import Loss, Watch


class LanguageTask:
    """Nats of the next token, over windows, streams or lines."""

    unit = "token"
    monitors = LANGUAGE_VALIDATION
    inner, prepare = 0, None

    def __init__(
        self, *, carries: bool, valid: Corpus | None, context: Context, device: torch.device, smoothing: float = 0.0
    ) -> None:
        self.carries, self.valid, self.context, self.device, self.smoothing = carries, valid, context, device, smoothing

    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> Loss:
        inputs, targets = batch.tokens[:, :-1], batch.tokens[:, 1:]
        nats, state = model.loss(inputs, targets, carry, self.smoothing)  # type: ignore[operator]
        if batch.keep is None:
            total, count = nats.sum(), torch.tensor(nats.numel(), device=nats.device)
        else:
            total, count = nats.masked_fill(~batch.keep[:, 1:], 0.0).sum(), batch.keep[:, 1:].sum()
        return Loss(total, count, detach(state) if self.carries else None)

    def validate(self, model: Any, watch: Watch | None = None) -> dict[str, float] | None:
        if self.valid is None:
            return None
        nats = surprisal(model, self.valid, self.context, device=self.device, watch=watch)
        return {self.monitors[0].name: float(nats.mean(dtype=np.float64))}
