"""Neural reward models: model, encoded data and training objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.formats import TableRecord
from weft.models.reward import RewardModel, reward_model
from weft.tasks.reward_model.batching import Preferences
from weft.tasks.reward_model.objective import PreferenceObjective
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


class RewardBuilder(NetworkTask[Preferences]):
    """Builds reward models, their examples and objectives."""

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], RewardModel]:
        return lambda: reward_model(
            config.model,
            vocab_size=vocabulary.vocab_size + 1,
            max_positions=config.data.max_length,
            segments=config.data.prompt_column is not None,
        )

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Dataset[TableRecord],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> Preferences:
        characters = [[len(text) for text in record.texts[-2:]] for record in dataset.records()]
        return Preferences(columns, np.array(characters, np.int64), config.data.max_length)

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: Preferences | None,
        valid: Preferences | None,
        device: torch.device,
    ) -> PreferenceObjective:
        smoothing = 0.0 if train is None else config.train.label_smoothing
        return PreferenceObjective(valid=valid, device=device, smoothing=smoothing)
