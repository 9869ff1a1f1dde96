"""Log-probabilities of the tokens of responses.

Shapes: B rows, T positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.data.batch import map_tensors
from weft.data.bucketing import by_length
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import share, sum_arrays
from weft.tasks.responses.batching import Dialogues, ResponseBatch
from weft.training.objective import ProgressCallback

BATCH_TOKENS = 16384  # positions per batch in inference


def hidden_states(model: Any, batch: ResponseBatch) -> tuple[Tensor, Tensor | None]:
    """The outputs of the stack for the inputs of a batch, (B, T, D), and the penalties on them, (B, T). Padding needs no mask,
    because it is in the future, unless the model has experts."""
    if batch.texts is not None:
        y, _ = model(batch.tokens[:, :-1], None, batch.texts[:, :-1])
        return y, None
    y, penalties, _ = model.penalized(batch.tokens[:, :-1], None, batch.is_target[:, 1:])
    return y, penalties


def token_losses(model: Any, batch: ResponseBatch, label_smoothing: float = 0.0) -> Tensor:
    """The negative log-likelihood of each target, (B, T), 0 where `is_target` is False."""
    losses: Tensor = model.head.loss(hidden_states(model, batch)[0], batch.tokens[:, 1:], label_smoothing)
    return losses.masked_fill(~batch.is_target[:, 1:], 0.0)


@torch.no_grad()
def response_losses(
    model: Any, data: Dialogues, device: torch.device, progress: ProgressCallback | None = None, group: Group = ALONE
) -> tuple[np.ndarray, np.ndarray]:
    """float64 (N,): the negative log-likelihood of the targets of each example; int64 (N,): their number. The processes of a
    group share the work."""
    nats, counts, done = np.zeros(len(data.lengths())), np.zeros(len(data.lengths()), np.int64), 0
    for members, batch in share(by_length(data, batch_tokens=BATCH_TOKENS), group):
        moved = map_tensors(batch, lambda part: part.to(device))
        nats[members] = token_losses(model, moved).double().sum(1).cpu().numpy()
        counts[members] = batch.is_target[:, 1:].sum(1).numpy()
        done += len(members) * group.size
        if progress is not None:
            progress(min(done, len(nats)), len(nats))
    return sum_arrays(nats, group), sum_arrays(counts, group)
