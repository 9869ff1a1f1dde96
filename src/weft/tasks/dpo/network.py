"""Direct preference optimization: model, encoded data and training objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.formats import TableRecord
from weft.errors import ConfigError
from weft.tasks.dpo.batching import ResponsePairs, pair_lengths
from weft.tasks.dpo.objective import DPOObjective
from weft.tasks.responses.model import build_model
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.text.tokenizers import Tokenizer


def encode_pairs(config: RunConfig, dataset: Dataset[TableRecord], columns: Sequence[Corpus]) -> ResponsePairs:
    """The pairs that are not too long."""
    members = np.flatnonzero(pair_lengths(columns).max(0) <= config.data.max_length)
    characters = [[len(text) for text in record.texts[-2:]] for record in dataset.records()]
    return ResponsePairs(columns, members, np.array(characters, np.int64)[members])


class DPOBuilder(NetworkTask[ResponsePairs]):
    """Builds models, pairs and objectives."""

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], Any]:
        return partial(build_model, config, vocabulary)

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Dataset[TableRecord],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> ResponsePairs:
        return encode_pairs(config, dataset, columns)

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: ResponsePairs | None,
        valid: ResponsePairs | None,
        device: torch.device,
    ) -> DPOObjective:
        smoothing = 0.0 if train is None else config.train.label_smoothing
        return DPOObjective(valid=valid, device=device, beta=config.model.dpo_beta, smoothing=smoothing)

    def bind(self, objective: DPOObjective, job: Job, initial_model: Callable[[], Any]) -> None:
        if job.config.train.init_from is None:
            raise ConfigError("train.init_from", "DPO needs a language model to start from", "set it to a run")
        objective.reference = initial_model()
