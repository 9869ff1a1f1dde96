"""Neural classifiers: model, encoded data and training objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from weft.data.corpus import Corpus
from weft.data.text_batching import LabeledTexts
from weft.models.classifier import Classifier, classifier
from weft.tasks.classification.data import labels_of
from weft.tasks.classification.evaluation import balance, targets, unseen
from weft.tasks.classification.files import Record
from weft.tasks.classification.objective import ClassificationObjective
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.config import RunConfig
    from weft.text.label_tokenizer import LabelTokenizer


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

    def chosen_options(self, model: Classifier) -> dict[str, float]:
        return {"temperature": float(model.head.temperature)}
