"""The [data] and [model] sections of policy gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from weft.config import Choice, invalid
from weft.data.config import datasets
from weft.data.dataset import Dataset
from weft.data.formats import TableFormat, TableRecord
from weft.tasks.responses.model import ResponseModelConfig
from weft.tasks.responses.template import PROMPT, RESPONSE, TemplateConfig

ALGORITHMS = ("rloo", "ppo", "grpo")
PLAIN = PROMPT + RESPONSE  # a template without text of its own: a response continues its prompt


class PromptDataConfig(TemplateConfig):
    """Prompts, and where the rewards of responses come from."""

    template: str = PLAIN
    """Text of a turn, with the places {prompt} and {response}. Default: that of the initial run."""
    prompt_column: str = "prompt"
    """Column or JSON key of the prompt."""
    reward_from: str | None = None
    """Run directory of a reward model or a classifier that rewards responses. Default: the function of a Python program."""
    reward_label: str | None = None
    """The label whose log-odds are the reward, if reward_from is a classifier."""
    judge_from: str | None = None
    """Run directory of a reward model or classifier that judges responses in validations, and is not trained against."""
    judge_label: str | None = None
    """The label whose log-odds are the judgment, if judge_from is a classifier."""
    max_length: int = Field(256, ge=4, le=2**31 - 1)
    """Maximum length of prompt and response in tokens, and the attention span. Longer prompts are an error."""
    skip_long: bool = False
    """Skip and count prompts that leave no room for a response. If false, they are an error."""

    @model_validator(mode="after")
    def check_rewards(self) -> Self:
        for name in ("reward", "judge"):
            if getattr(self, f"{name}_label") is not None and getattr(self, f"{name}_from") is None:
                raise invalid(f"{name}_label", f"not used without {name}_from", f"set {name}_from")
        return self

    def sources(self, base: Path) -> dict[str, Dataset[TableRecord]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        form = TableFormat((self.prompt_column,), (), self.encoding, "prompts", delimiter=self.delimiter, sheet=self.sheet)
        return datasets(base, form, self)


class PolicyConfig(ResponseModelConfig):
    """A language model that is trained with rewards of its own responses."""

    algorithm: Annotated[str, Choice(ALGORITHMS, "algorithm")] = "rloo"
    """rloo: REINFORCE with the other responses as baseline. ppo: with a value function and clipping. grpo: rewards normalized
    within each prompt, and clipping."""
    samples_per_prompt: int = Field(4, ge=1, le=1024)
    """Responses to each prompt of a batch."""
    max_new_tokens: int = Field(64, ge=1, le=10_000)
    """Maximum number of tokens of a response."""
    kl_weight: float = Field(0.05, ge=0.0)
    """Weight of the KL divergence from the initial model, in rewards per nat."""
    clip_range: float = Field(0.2, gt=0.0, lt=1.0)
    """How far the probability ratio of an update may be from 1."""
    updates_per_rollout: int | None = Field(None, ge=1, le=100)
    """Optimizer steps per batch of responses. Default: 4 for ppo, otherwise 1."""
    value_weight: float | None = Field(None, ge=0.0)
    """ppo only: weight of the loss of the value function. Default: 0.1."""
    gae_lambda: float | None = Field(None, ge=0.0, le=1.0)
    """ppo only: decay of generalized advantage estimation. Default: 0.95."""

    @model_validator(mode="after")
    def check_algorithm(self) -> Self:
        if self.algorithm != "ppo":
            for option in ("value_weight", "gae_lambda"):
                if getattr(self, option) is not None:
                    raise invalid(option, f"not used with algorithm {self.algorithm!r}", "remove it")
            if self.samples_per_prompt < 2:
                raise invalid("samples_per_prompt", f"must be at least 2 for {self.algorithm}, which compares responses")
        return self

    def with_defaults(self) -> Self:
        is_ppo = self.algorithm == "ppo"
        values: dict[str, Any] = {"updates_per_rollout": self.updates_per_rollout or (4 if is_ppo else 1)}
        if is_ppo:
            weight, decay = self.value_weight, self.gae_lambda
            values |= {"value_weight": 0.1 if weight is None else weight, "gae_lambda": 0.95 if decay is None else decay}
        return super().with_defaults().model_copy(update=values)
