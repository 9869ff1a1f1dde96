"""Training classifiers: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from weft.data.corpus import Corpus
from weft.data.text_order import Labelled
from weft.models.classifier import Classifier, classifier
from weft.tasks.classification.data import labels_of
from weft.tasks.classification.files import Record
from weft.tasks.classification.judging import balance, targets, unseen
from weft.tasks.classification.objective import ClassificationTask
from weft.train.network import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.settings import Settings
    from weft.text.labelled_tokens import LabelledTokens


class Classification(NetworkTask[Labelled]):
    """Networks that say what a text is."""

    def build(self, settings: Settings, vocabulary: LabelledTokens) -> Callable[[], Classifier]:
        return lambda: classifier(
            settings.model,
            words=vocabulary.tokenizer.size + 1,
            labels=vocabulary.labels.size,
            longest=settings.data.longest,
            segments=len(settings.data.columns()) > 1,
            several=settings.data.multi,
        )

    def encode(
        self,
        settings: Settings,
        vocabulary: LabelledTokens,
        dataset: Dataset[Record],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> Labelled:
        found, labels = labels_of(dataset), vocabulary.labels
        right = targets(found, labels, several=settings.data.multi)
        return Labelled(columns, right, unseen(found, labels), settings.data.longest)

    def objective(
        self,
        settings: Settings,
        vocabulary: LabelledTokens,
        train: Labelled | None,
        valid: Labelled | None,
        device: torch.device,
    ) -> ClassificationTask:
        weights = None
        if train is not None and settings.model.balanced:
            weights = torch.from_numpy(balance(train.labels, vocabulary.labels.size))
        return ClassificationTask(
            valid=valid,
            device=device,
            several=settings.data.multi,
            weights=weights,
            smoothing=settings.train.label_smoothing if train is not None else 0.0,
        )
