"""Direct preference optimization (Rafailov et al. 2023).

    loss = -ln sigmoid(r(chosen) - r(rejected)),  r(y) = beta (ln p(y | x) - ln p_initial(y | x))

Shapes: N pairs, B rows, T positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import map_tensors
from weft.data.bucketing import by_length
from weft.metrics.metric import values
from weft.metrics.preferences import PREFERENCES_VALIDATION, preference_items
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import share, sum_arrays
from weft.tasks.dpo.batching import PairBatch, ResponsePairs
from weft.tasks.responses.batching import ResponseBatch
from weft.tasks.responses.scoring import token_losses
from weft.training.objective import Loss, ProgressCallback

BATCH_TOKENS = 16384  # in inference


def response_log_probs(model: Any, tokens: Tensor, is_target: Tensor) -> Tensor:
    """ln p(response | prompt) of each row, (B,)."""
    return -token_losses(model, ResponseBatch(tokens, is_target)).sum(1)


def implicit_rewards(model: Any, reference: Any, batch: PairBatch, beta: float) -> tuple[Tensor, Tensor]:
    """beta (ln p - ln p_initial) of the chosen and the rejected responses, (B,) each; beta ln p without a `reference`."""
    rewards = []
    for tokens, is_target in (batch[:2], batch[2:]):
        reward = beta * response_log_probs(model, tokens, is_target)
        if reference is not None:
            with torch.no_grad():
                initial = beta * response_log_probs(reference, tokens, is_target)
            reward = reward - initial
        rewards.append(reward)
    return rewards[0], rewards[1]


class DPOObjective:
    """The loss above; with label smoothing e, a fraction e / 2 of the preferences is assumed to be wrong (conservative DPO).
    `bind` sets the initial model; the plain loss, for checks of gradients, has none."""

    unit = "example"
    monitors = PREFERENCES_VALIDATION
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation

    def __init__(self, *, valid: ResponsePairs | None, device: torch.device, beta: float, smoothing: float = 0.0) -> None:
        self.valid, self.device, self.beta, self.smoothing = valid, device, beta, smoothing
        self.reference: Any = None

    def loss(self, model: Any, batch: PairBatch, carry: None) -> Loss:
        chosen, rejected = implicit_rewards(model, self.reference, batch, self.beta)
        margins, wrong = chosen - rejected, self.smoothing / 2
        losses = -(1 - wrong) * F.logsigmoid(margins) - wrong * F.logsigmoid(-margins)
        tokens = batch.chosen_targets.sum() + batch.rejected_targets.sum()
        return Loss(losses.sum(), torch.full((), len(losses), device=losses.device), None, tokens)

    @torch.no_grad()
    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        if self.valid is None:
            return None
        rewards = pair_rewards(model, self.reference, self.valid, self.beta, self.device, progress, self.group)
        return values(preference_items(rewards[0], rewards[1], self.valid.characters), PREFERENCES_VALIDATION)


@torch.no_grad()
def pair_rewards(
    model: Any,
    reference: Any,
    data: ResponsePairs,
    beta: float,
    device: torch.device,
    progress: ProgressCallback | None,
    group: Group = ALONE,
) -> np.ndarray:
    """float64 (2, N): the implicit rewards of the chosen and the rejected responses. The processes of a group share them."""
    rewards, done = np.zeros((2, len(data.members))), 0
    for members, batch in share(by_length(data, batch_tokens=BATCH_TOKENS), group):
        moved = map_tensors(batch, lambda part: part.to(device))
        rewards[:, members] = torch.stack(implicit_rewards(model, reference, moved, beta)).double().cpu().numpy()
        done += len(members) * group.size
        if progress is not None:
            progress(min(done, rewards.shape[1]), rewards.shape[1])
    return sum_arrays(rewards, group)
