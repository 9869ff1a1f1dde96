"""Rewards of responses by another run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.runs.load import load, with_model
from weft.tasks.policy_gradient.config import PLAIN

if TYPE_CHECKING:
    from weft.tasks.policy_gradient.rollout import PairRewards


def run_rewards(data: Any, name: str, device: str) -> PairRewards:
    """The rewards by the run of `data.NAME_from`. Where a response continues its prompt, the run reads both as one text."""
    options = data.model_dump()
    path, label = options[f"{name}_from"], options[f"{name}_label"]
    run = with_model(load(path, device=device))
    rewards = run.spec.rewards
    if rewards is None:
        problem = f"{path} has task {run.task!r}, which gives no rewards"
        raise ConfigError(f"data.{name}_from", problem, "use a reward model or a classifier")

    def compute(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        pairs = list(zip(prompts, responses, strict=True))
        if data.template == PLAIN:
            pairs = [(prompt, prompt + response) for prompt, response in pairs]
        return rewards(run, pairs, label)

    compute([""], [""])  # a wrong label is refused before training
    return compute
