"""Advantages and losses of policy gradients.

Shapes: P prompts, G responses to each, R = P G rows, T positions. `mask` (R, T) is True on the tokens of responses.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-4  # added to standard deviations, as in trl


def leave_one_out(rewards: Tensor) -> Tensor:
    """RLOO (Kool et al. 2019; Ahmadian et al. 2024): rewards (P, G) minus the mean of the other responses to the prompt."""
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.size(1) - 1)
    return rewards - others


def group_normalized(rewards: Tensor) -> Tensor:
    """GRPO (Shao et al. 2024): rewards (P, G) minus their mean, over their standard deviation, for each prompt."""
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + EPSILON)


def generalized_advantages(rewards: Tensor, values: Tensor, mask: Tensor, gae_lambda: float) -> Tensor:
    """Generalized advantage estimation (Schulman et al. 2016) without discount, (R, T): sum over k of lambda^k delta(t + k),
    delta(t) = r(t) + V(t + 1) - V(t). Rewards (R, T) of tokens, values (R, T) before each token; after the last, V is 0."""
    advantages, running = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    next_values = torch.zeros_like(running)
    for position in range(rewards.size(1) - 1, -1, -1):
        is_token = mask[:, position]
        delta = rewards[:, position] + next_values - values[:, position]
        running = torch.where(is_token, delta + gae_lambda * running, running)
        advantages[:, position] = torch.where(is_token, running, 0.0)
        next_values = torch.where(is_token, values[:, position], next_values)
    return advantages


def whitened(values: Tensor, mask: Tensor) -> Tensor:
    """Values (R, T) with mean 0 and standard deviation 1 over the mask; 0 elsewhere."""
    selected = values[mask]
    scale = selected.std() if selected.numel() > 1 else selected.new_ones(())
    return torch.where(mask, (values - selected.mean()) / (scale + EPSILON), 0.0)


def clipped_policy_loss(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """PPO (Schulman et al. 2017): -min(ratio A, clip(ratio, 1 - c, 1 + c) A) for each log-ratio of new to old probability."""
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_range, 1 + clip_range) * advantages)


def kl_estimate(log_probs: Tensor, reference: Tensor) -> Tensor:
    """An unbiased, nonnegative estimate of the KL divergence at each token, exp(d) - d - 1 with d = ln p_ref - ln p (Schulman
    2020), as in GRPO."""
    difference = reference - log_probs
    return difference.exp() - difference - 1
