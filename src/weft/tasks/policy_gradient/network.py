"""Policy gradients: model, prompts and training objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.formats import TableRecord
from weft.errors import ConfigError
from weft.tasks.policy_gradient.batching import Prompts
from weft.tasks.policy_gradient.objective import PolicyObjective
from weft.tasks.policy_gradient.rewards import run_rewards
from weft.tasks.responses.model import build_model
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.text.tokenizers import Tokenizer


DROPOUT = ("dropout", "attention_dropout", "embedding_dropout", "weight_dropout", "word_type_dropout")


class PolicyBuilder(NetworkTask[Prompts]):
    """Builds policies, their prompts and objectives."""

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], Any]:
        # responses are sampled without dropout, and probability ratios compare with that distribution
        options = {name: 0.0 for name in DROPOUT if getattr(config.model, name) is not None}
        plain = replace(config, model=config.model.model_copy(update=options))

        def build() -> Any:
            model: Any = build_model(plain, vocabulary)
            if config.model.algorithm == "ppo":
                model.value_head = nn.Linear(config.model.hidden_size, 1)
                nn.init.zeros_(model.value_head.weight)
            return model

        return build

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Dataset[TableRecord],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> Prompts:
        (corpus,), model = columns, config.model
        lengths = np.diff(corpus.line_starts())
        members = np.flatnonzero(lengths + model.max_new_tokens <= config.data.max_length)
        texts = [record.texts[0] for record in dataset.records()]
        row_tokens = model.samples_per_prompt * model.max_new_tokens
        return Prompts(corpus, members, [texts[index] for index in members.tolist()], dataset, row_tokens)

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: Prompts | None,
        valid: Prompts | None,
        device: torch.device,
    ) -> PolicyObjective:
        return PolicyObjective(
            config.model,
            vocabulary,
            train=train,
            valid=valid,
            device=device,
            batch_tokens=config.train.batch_tokens,
        )

    def bind(self, objective: PolicyObjective, job: Job, initial_model: Callable[[], Any]) -> None:
        data = job.config.data
        if job.config.train.init_from is None:
            raise ConfigError("train.init_from", "a policy needs a language model to start from", "set it to a run")
        if data.reward_from is None and job.reward is None:
            fix = "set it to a run, or pass a function to weft.train: reward=function"
            raise ConfigError("data.reward_from", "there is nothing to learn from", fix)
        if data.reward_from is not None and job.reward is not None:
            raise ConfigError("data.reward_from", "a reward function is given as well", "use one of them")
        device = job.config.train.device
        objective.reference = initial_model()
        objective.reward = job.reward or run_rewards(data, "reward", device)
        objective.judge = None if data.judge_from is None else run_rewards(data, "judge", device)
