"""The training objective of denoising: predict the target from the corrupted text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft.data.bucketing import by_length
from weft.metrics.denoising import DENOISING_VALIDATION
from weft.metrics.items import ItemStatistics
from weft.metrics.metric import values
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import share, sum_arrays
from weft.tasks.denoising.batching import NoisyTexts
from weft.tasks.encoder_decoder.pair_objective import PairObjective
from weft.training.objective import ProgressCallback

BATCH_TOKENS = 4096  # positions scored at once


@torch.inference_mode()
def target_statistics(
    model: Any, data: NoisyTexts, device: torch.device, progress: ProgressCallback | None = None, group: Group = ALONE
) -> ItemStatistics:
    """For each text with the noise of validation: the negative log-likelihood of its target, the number of its tokens, with
    </s>, and how many of them are the most probable one after the tokens before. The processes of a group share the work."""
    nats, tokens, correct = (np.zeros(data.corpus.lines) for _ in range(3))
    done = 0
    for members, batch in share(by_length(data, batch_tokens=BATCH_TOKENS), group):
        targets, token_mask = batch.tokens[:, 1:], batch.token_mask[:, 1:]
        state = model.encode(batch.source.to(device), batch.source_mask.to(device))
        log_probs = model.log_probs(batch.tokens[:, :-1].to(device), state).float().cpu()
        nll = -log_probs.gather(2, targets[..., None])[..., 0].double()
        nats[members] = nll.masked_fill(~token_mask, 0.0).sum(1).numpy()
        tokens[members] = token_mask.sum(1).numpy()
        correct[members] = ((log_probs.argmax(2) == targets) & token_mask).sum(1).numpy()
        done += len(members) * group.size
        if progress is not None:
            progress(min(done, data.corpus.lines), data.corpus.lines)
    statistics = {"nats": nats, "tokens": tokens, "correct": correct}
    return ItemStatistics(np.arange(data.corpus.lines), {name: sum_arrays(part, group) for name, part in statistics.items()})


class DenoisingObjective(PairObjective):
    """Cross-entropy of each target token, given the corrupted text and the preceding tokens."""

    monitors = DENOISING_VALIDATION

    def __init__(self, *, valid: NoisyTexts | None, device: torch.device, smoothing: float = 0.0) -> None:
        self.valid, self.device, self.smoothing = valid, device, smoothing

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Loss and token accuracy on the validation data, whose noise is the same in each validation."""
        if self.valid is None:
            return None
        items = target_statistics(model, self.valid, self.device, progress, self.group)
        loss = float(items.statistics["nats"].sum() / items.statistics["tokens"].sum())
        # a NaN loss is returned as it is: the training loop raises an error
        return {self.monitors[0].name: loss, **values(items, self.monitors[1:])}
