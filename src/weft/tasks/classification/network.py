"""Training classifiers: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.data.text_order import Labelled
from weft.errors import ConfigError
from weft.metrics.metric import metric_names
from weft.models.classifier import Classifier, classifier
from weft.tasks.classification.data import labels_of
from weft.tasks.classification.files import Record
from weft.tasks.classification.objective import ClassificationTask, label_metrics
from weft.text.labels import Labels
from weft.train.meaning import Part, Weights, encoder_parts
from weft.train.network import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.settings import Settings
    from weft.text.labelled_tokens import LabelledTokens


def unseen(found: Sequence[tuple[str, ...]], labels: Labels) -> np.ndarray:
    """int64 (N,): how many labels of each text are not among those of training."""
    return np.array([sum(labels.index(name) is None for name in names) for names in found], np.int64)


def targets(found: Sequence[tuple[str, ...]], labels: Labels, *, several: bool) -> np.ndarray:
    """int64 (N, 1): the number of each text's label, -1 where it is not among them; or (N, K), 1 for those that it has."""
    if not several:
        numbers = [labels.index(names[0]) for names in found]
        return np.array([[-1 if number is None else number] for number in numbers], np.int64)
    rows = np.zeros((len(found), labels.size), np.int64)
    for at, names in enumerate(found):
        known = [number for number in map(labels.index, names) if number is not None]
        rows[at, known] = 1
    return rows


def balance(labels: np.ndarray, size: int) -> torch.Tensor:
    """(K,): how much each label counts so that all count alike, in the mean over the texts 1."""
    counts = np.bincount(labels[labels >= 0].ravel(), minlength=size) if labels.shape[1] == 1 else labels.sum(0)
    return torch.from_numpy(counts.sum() / (size * np.maximum(1, counts))).float()


class Classification(NetworkTask[Labelled]):
    """Networks that say what a text is."""

    def check(self, settings: Settings) -> None:
        known = metric_names([label_metrics(several=settings.data.multi)])
        if settings.train.monitor is not None and settings.train.monitor not in known:
            several = str(settings.data.multi).lower()
            raise ConfigError(
                f"train.monitor: {settings.train.monitor!r} is no score where data.multi={several}; use {known[0]!r}"
            )

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
            weights = balance(train.labels, vocabulary.labels.size)
        return ClassificationTask(
            valid=valid,
            device=device,
            several=settings.data.multi,
            weights=weights,
            smoothing=settings.train.label_smoothing if train is not None else 0.0,
        )


def _parts(settings: Settings, vocabulary: LabelledTokens, layers: Mapping[str, int]) -> dict[str, Part]:
    head = {"labels": list(vocabulary.labels.names), "data.multi": settings.data.multi}
    return encoder_parts(settings, vocabulary.tokenizer, layers, longest=settings.data.longest, head=head)


WEIGHTS = Weights(_parts)
