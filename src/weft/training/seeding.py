"""Seeds of training steps."""

from __future__ import annotations

import torch


def seed_step(seed: int, step: int, device: torch.device, part: int = 0) -> None:
    """Seed torch's generators. Dropout then depends on seed, step and part of the batch only: checkpoints need no random state,
    and other work between steps has no effect."""
    step_seed = (seed * 1_000_003 + step + part * 0x9E3779B97F4A7C15) % 2**63
    torch.default_generator.manual_seed(step_seed)  # faster than torch.manual_seed, which formats a stack trace
    if device.type == "cuda":
        torch.cuda.manual_seed(step_seed)
