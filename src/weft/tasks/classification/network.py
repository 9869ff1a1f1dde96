"""Training classifiers: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from weft.data.grouped import ExampleOrder
from weft.data.text_order import Labelled, TextBatch
from weft.errors import ConfigError
from weft.metrics.metric import metric_names
from weft.models.classifier import Classifier, classifier
from weft.tasks.classification.data import labels_of
from weft.tasks.classification.objective import ClassificationTask, label_metrics
from weft.text.labels import Labels
from weft.train.device import pick_device

if TYPE_CHECKING:
    from weft.runs.job import Job
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


def labelled(job: Job, split: str) -> Labelled:
    """A split as tokens and numbers of labels."""
    data = job.settings.data
    columns = [job.corpora[f"{split}.{at}"] for at in range(len(data.columns()))]
    found = labels_of(job.settings.datasets[split])
    labels = job.tokenizer.labels
    return Labelled(columns, targets(found, labels, several=data.multi), unseen(found, labels), data.longest)


def balance(labels: np.ndarray, size: int) -> torch.Tensor:
    """(K,): how much each label counts so that all count alike, in the mean over the texts 1."""
    counts = np.bincount(labels[labels >= 0].ravel(), minlength=size) if labels.shape[1] == 1 else labels.sum(0)
    return torch.from_numpy(counts.sum() / (size * np.maximum(1, counts))).float()


class Classification:
    """Networks that say what a text is."""

    def check(self, settings: Settings) -> None:
        known = metric_names([label_metrics(several=settings.data.multi)])
        if settings.train.monitor is not None and settings.train.monitor not in known:
            several = str(settings.data.multi).lower()
            raise ConfigError(
                f"train.monitor: {settings.train.monitor!r} is no score where data.multi={several}; use {known[0]!r}"
            )

    def alike(self, settings: Settings) -> bool:
        return False

    def build(self, settings: Settings, tokenizer: LabelledTokens) -> Callable[[], Classifier]:
        return lambda: classifier(
            settings.model,
            words=tokenizer.tokenizer.size + 1,
            labels=tokenizer.labels.size,
            longest=settings.data.longest,
            segments=len(settings.data.columns()) > 1,
            several=settings.data.multi,
        )

    def order(self, job: Job) -> ExampleOrder[TextBatch]:
        train = job.settings.train
        return ExampleOrder(labelled(job, "train"), batch_tokens=train.batch_tokens, seed=job.settings.seed)

    def task(self, job: Job, model: nn.Module) -> ClassificationTask:
        weights = None
        if job.settings.model.balanced:
            weights = balance(labelled(job, "train").labels, job.tokenizer.labels.size)
        return ClassificationTask(
            valid=labelled(job, "valid") if "valid.0" in job.corpora else None,
            device=pick_device(job.settings.train.device),
            several=job.settings.data.multi,
            weights=weights,
            smoothing=job.settings.train.label_smoothing,
        )
