"""The loss of encoder-decoders: predict each token of the target from the source and the tokens before it."""

from __future__ import annotations

from typing import Any

from weft.parallel.group import ALONE
from weft.tasks.encoder_decoder.pair_batch import PairBatch
from weft.training.distillation import Outputs, smoothed_nll
from weft.training.objective import Loss


class PairObjective:
    """Cross-entropy of each target token; subclasses add the validation."""

    unit = "token"
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation
    smoothing: float

    def loss(self, model: Any, batch: PairBatch, carry: None) -> Loss:
        state = model.encode(batch.source, batch.source_mask)
        token_mask = batch.token_mask[:, 1:]
        losses, _ = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:], state, self.smoothing, target_mask=token_mask)
        return Loss(losses.masked_fill(~token_mask, 0.0).sum(), token_mask.sum(), None)

    def outputs(self, model: Any, batch: PairBatch, carry: None) -> Outputs:
        state, token_mask = model.encode(batch.source, batch.source_mask), batch.token_mask[:, 1:]
        log_probs = model.log_probs(batch.tokens[:, :-1], state, target_mask=token_mask)
        losses = smoothed_nll(log_probs, batch.tokens[:, 1:], self.smoothing)
        return Outputs(log_probs, Loss(losses.masked_fill(~token_mask, 0.0).sum(), token_mask.sum(), None), token_mask)
