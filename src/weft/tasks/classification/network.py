"""Neural classifiers: model, encoded data and training objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.data.text_batching import LabeledTexts
from weft.errors import ConfigError
from weft.models.classifier import Classifier, classifier
from weft.tasks.classification.data import labels_of
from weft.tasks.classification.ensemble import combine
from weft.tasks.classification.evaluation import balance, targets, unseen
from weft.tasks.classification.files import Record
from weft.tasks.classification.objective import ClassificationObjective
from weft.training.distillation import Teacher
from weft.training.neural import NetworkTask, Progress
from weft.training.objective import ProgressCallback

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.config import RunConfig
    from weft.runs.run import AnyRun
    from weft.text.label_tokenizer import LabelTokenizer

MAX_LOG_PROB = -1e-7  # of a label: the probability that a text does not have it is above 0


class ClassificationBuilder(NetworkTask[LabeledTexts]):
    """Builds the network, data and objective of classification."""

    def build(self, config: RunConfig, vocabulary: LabelTokenizer) -> Callable[[], Classifier]:
        return lambda: classifier(
            config.model,
            vocab_size=vocabulary.tokenizer.vocab_size + 1,
            num_labels=vocabulary.labels.size,
            max_positions=config.data.max_length,
            segments=len(config.data.columns()) > 1,
            multilabel=config.data.multilabel,
        )

    def encode(
        self,
        config: RunConfig,
        vocabulary: LabelTokenizer,
        dataset: Dataset[Record],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> LabeledTexts:
        gold, labels = labels_of(dataset), vocabulary.labels
        label_ids = targets(gold, labels, multilabel=config.data.multilabel)
        return LabeledTexts(columns, label_ids, unseen(gold, labels), config.data.max_length)

    def objective(
        self,
        config: RunConfig,
        vocabulary: LabelTokenizer,
        train: LabeledTexts | None,
        valid: LabeledTexts | None,
        device: torch.device,
    ) -> ClassificationObjective:
        weights = None
        if train is not None and config.model.class_weight == "balanced":
            weights = torch.from_numpy(balance(train.labels, vocabulary.labels.size))
        return ClassificationObjective(
            valid=valid,
            device=device,
            multilabel=config.data.multilabel,
            weights=weights,
            smoothing=config.train.label_smoothing if train is not None else 0.0,
            fits_temperature=config.model.temperature is None,
        )

    def check_teacher(self, config: RunConfig, vocabulary: LabelTokenizer, run: AnyRun) -> None:
        """A teacher reads texts with its own tokenizer or features: only labels and columns must be equal."""
        for what, theirs, ours in (
            ("labels", run.labels, vocabulary.labels.names),
            ("data.multilabel", run.config.data.multilabel, config.data.multilabel),
            ("texts per example", len(run.config.data.columns()), len(config.data.columns())),
        ):
            if theirs != ours:
                problem = f"{run.path} has other {what} than this run: {theirs} instead of {ours}"
                raise ConfigError("train.distill_from", problem, "train on the same data")

    def add_soft_labels(
        self, dataset: Dataset[Record], train: LabeledTexts, runs: Sequence[AnyRun], progress: ProgressCallback
    ) -> LabeledTexts:
        texts = [record.texts for record in dataset.records()]
        soft_labels = combine(runs, [1 / len(runs)] * len(runs)).log_probs(texts, progress)
        if runs[0].config.data.multilabel:
            soft_labels = np.stack([soft_labels, np.log(-np.expm1(np.minimum(soft_labels, MAX_LOG_PROB)))], axis=-1)
        return replace(train, soft_labels=soft_labels.astype(np.float32))

    def teacher(self, objective: ClassificationObjective, runs: Sequence[AnyRun]) -> Teacher:
        """The predictions for the training texts, which are part of the batches."""
        return lambda batch, carry: (batch.soft_labels, None)

    def chosen_options(self, model: Classifier) -> dict[str, float]:
        return {"temperature": float(model.head.temperature)}
