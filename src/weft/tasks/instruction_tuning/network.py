"""Instruction tuning: model, encoded data and training objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.data.batching import BatchSampler
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.models.lm import LanguageModel
from weft.tasks.instruction_tuning.objective import ResponseObjective
from weft.tasks.responses.batching import Dialogues, PackedSampler
from weft.tasks.responses.data import dialogue_edges, dialogue_lengths
from weft.tasks.responses.files import Dialogue
from weft.tasks.responses.model import build_model
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


class InstructionBuilder(NetworkTask[Dialogues]):
    """Builds models that respond, their examples and objectives."""

    def compiles(self, config: RunConfig) -> bool:
        return bool(config.data.packing and config.model.traits.compiles)

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], LanguageModel]:
        return partial(build_model, config, vocabulary)

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Dataset[Dialogue],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> Dialogues:
        """The examples that are not too long. Prompts have a loss in training only."""
        edges = dialogue_edges(dataset)
        sizes = dialogue_lengths(columns, edges)
        members = np.flatnonzero(sizes <= config.data.max_length)
        response_only = config.data.response_only or not learned
        return Dialogues(columns[0], columns[1], edges, members, sizes[members], response_only)

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: Dialogues | None,
        valid: Dialogues | None,
        device: torch.device,
    ) -> ResponseObjective:
        smoothing = 0.0 if train is None else config.train.label_smoothing
        return ResponseObjective(valid=valid, device=device, smoothing=smoothing)

    def batch_sampler(self, config: RunConfig, train: Dialogues) -> BatchSampler[Any]:
        """Batches of examples of similar length, or packed rows."""
        if not config.data.packing:
            return super().batch_sampler(config, train)
        return PackedSampler(train, width=config.data.max_length, batch_tokens=config.train.batch_tokens, seed=config.seed)
