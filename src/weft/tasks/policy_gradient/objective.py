"""Policy gradients: rollouts, losses and validation.

Shapes: P prompts, G responses to each, R = P G rows, T positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import UsageError
from weft.metrics.feedback import FEEDBACK_VALIDATION, feedback_items
from weft.metrics.metric import values
from weft.tasks.policy_gradient.batching import PromptBatch, Prompts, RolloutBatch
from weft.tasks.policy_gradient.config import PolicyConfig
from weft.tasks.policy_gradient.losses import (
    clipped_policy_loss,
    generalized_advantages,
    group_normalized,
    kl_estimate,
    leave_one_out,
    whitened,
)
from weft.tasks.policy_gradient.rollout import (
    PairRewards,
    Responses,
    checked_rewards,
    repetition,
    sample_responses,
    score_in_batches,
    score_tokens,
)
from weft.text.tokenizers import Tokenizer
from weft.training.objective import Loss, ProgressCallback

VALIDATION_SEED = 1 << 40  # of the responses in validations: the same random numbers each time
MAX_VALIDATION_PROMPTS = 128


class PolicyObjective:
    """Expected reward minus the weighted KL divergence from the initial model. `bind` sets the reference and the rewards."""

    unit = "response"
    monitors = FEEDBACK_VALIDATION
    augment = None

    def __init__(
        self,
        config: PolicyConfig,
        tokenizer: Tokenizer,
        *,
        train: Prompts | None,
        valid: Prompts | None,
        device: torch.device,
        batch_tokens: int,
    ) -> None:
        self.config, self.tokenizer, self.train, self.device = config, tokenizer, train, device
        self.valid = train if valid is None else valid
        self.batch_tokens = batch_tokens  # per forward pass without gradients
        self.reference: Any = None
        self.reward: PairRewards | None = None
        self.judge: PairRewards | None = None

    @property
    def inner_steps(self) -> int:
        return self.config.updates_per_rollout or 1

    # ---- rollouts

    def _rewards(self, data: Prompts, members: np.ndarray, responses: Responses) -> list[float]:
        if self.reward is None:
            raise RuntimeError("the objective has no rewards")
        prompts = [data.texts[index] for index in members.tolist()]
        return checked_rewards(self.reward, prompts, responses.texts, lambda row: data.location(int(members[row])))

    def prepare(self, model: Any, batch: PromptBatch, *, seed: int) -> RolloutBatch:
        """Sample responses to prompts, and compute their rewards and advantages."""
        if self.train is None:
            raise RuntimeError("the objective has no prompts")
        members = np.repeat(batch.members.cpu().numpy(), self.config.samples_per_prompt)
        responses = self._sample(model, self.train, members, seed)
        rewards = torch.tensor(self._rewards(self.train, members, responses), device=self.device)
        log_probs, _ = score_in_batches(model, responses.tokens, responses.mask, self.batch_tokens)
        reference, _ = score_in_batches(self.reference, responses.tokens, responses.mask, self.batch_tokens)
        advantages, returns = self._advantages(model, responses, rewards, log_probs - reference)
        parts = (responses.mask, log_probs, reference, advantages, returns)
        return RolloutBatch(responses.tokens, *(part if part.size(1) == 1 else F.pad(part, (1, 0)) for part in parts))

    def _sample(self, model: Any, data: Prompts, members: np.ndarray, seed: int) -> Responses:
        prompts = [data.ids(index) for index in members.tolist()]
        return sample_responses(
            model, prompts, self.tokenizer, max_new_tokens=self.config.max_new_tokens, seed=seed, device=self.device
        )

    def _advantages(self, model: Any, responses: Responses, rewards: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages (R, T) or (R, 1), and targets of the value function. `log_ratio` (R, T) is ln p - ln p_ref."""
        config, grouped = self.config, (-1, self.config.samples_per_prompt)
        match config.algorithm:
            case "rloo":
                total = rewards - config.kl_weight * log_ratio.sum(1)
                advantages = leave_one_out(total.view(grouped)).flatten()[:, None]
            case "grpo":  # the KL divergence is part of the loss
                advantages = group_normalized(rewards.view(grouped)).flatten()[:, None]
            case _:
                return self._value_advantages(model, responses, rewards, log_ratio)
        return advantages, torch.zeros_like(advantages)

    def _value_advantages(self, model: Any, responses: Responses, rewards: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages by GAE; the reward comes with the last token."""
        mask = responses.mask
        states = score_tokens(model, responses.tokens, mask).hidden
        state_values = model.value_head(states)[..., 0].float().masked_fill(~mask, 0.0)
        token_rewards = -self.config.kl_weight * log_ratio
        last = mask.size(1) - 1 - mask.flip(1).int().argmax(1)
        token_rewards[torch.arange(len(last), device=mask.device), last] += rewards
        advantages = generalized_advantages(token_rewards, state_values, mask, self.config.gae_lambda or 0.0)
        return whitened(advantages, mask), advantages + state_values

    # ---- the loss

    def loss(self, model: Any, batch: RolloutBatch, carry: None) -> Loss:
        if isinstance(batch, PromptBatch):  # the plain loss, for checks of gradients
            raise UsageError("loss", "the loss of a policy needs responses with rewards", "use the run that it starts from")
        mask, old_log_probs, reference = (part[:, 1:] for part in batch[1:4])
        advantages, returns = (part if part.size(1) == 1 else part[:, 1:] for part in batch[4:])
        scores = score_tokens(model, batch.tokens, mask)
        difference = scores.log_probs - old_log_probs
        rows, tokens = torch.tensor(len(mask), device=mask.device), mask.sum()
        config = self.config
        match config.algorithm:
            case "rloo":  # the action is the whole response
                losses = clipped_policy_loss(difference.sum(1), advantages[:, 0], config.clip_range)
                return Loss(losses.sum(), rows, None, tokens)
            case "grpo":
                losses = clipped_policy_loss(difference, advantages, config.clip_range)
                losses = losses + config.kl_weight * kl_estimate(scores.log_probs, reference)
                means = losses.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp_min(1)
                return Loss(means.sum(), rows, None, tokens)
        losses = clipped_policy_loss(difference, advantages, config.clip_range).masked_fill(~mask, 0.0)
        errors = (model.value_head(scores.hidden)[..., 0].float() - returns).square().masked_fill(~mask, 0.0)
        penalty = (config.value_weight or 0.0) * errors.sum() / 2
        return Loss(losses.sum(), tokens, None, tokens, penalty)

    # ---- validation

    @torch.no_grad()
    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Rewards, KL divergence, lengths, entropy and repetition of one response to each validation prompt, or to the first
        training prompts."""
        data = self.valid
        if data is None:
            return None
        members = np.arange(min(len(data.members), MAX_VALIDATION_PROMPTS))
        responses = self._sample(model, data, members, VALIDATION_SEED)
        rewards = self._rewards(data, members, responses)
        prompts = [data.texts[index] for index in members.tolist()]
        judgments = None
        if self.judge is not None:
            judgments = checked_rewards(self.judge, prompts, responses.texts, data.location)
        log_probs, entropy = score_in_batches(model, responses.tokens, responses.mask, self.batch_tokens, entropy=True)
        reference, _ = score_in_batches(self.reference, responses.tokens, responses.mask, self.batch_tokens)
        items = feedback_items(
            reward=rewards,
            judge=judgments,
            length=responses.lengths,
            repetition=repetition(responses.texts),
            kl=(log_probs - reference).double().sum(1).tolist(),
            entropy=None if entropy is None else entropy.double().sum(1).tolist(),
        )
        scores = values(items, FEEDBACK_VALIDATION)
        return {"objective": scores["reward"] - self.config.kl_weight * scores["kl"], **scores}
