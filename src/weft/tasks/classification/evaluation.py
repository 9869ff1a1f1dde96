"""What is right of texts, as numbers, and what was said of them beside it.

Shapes: N texts, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.metrics.classification import label_items, multilabel_items
from weft.metrics.items import ItemStatistics
from weft.text.labels import LabelVocabulary


def unseen(found: Sequence[tuple[str, ...]], labels: LabelVocabulary) -> np.ndarray:
    """int64 (N,): how many labels of each text are not among those of training."""
    return np.array([sum(labels.index(name) is None for name in names) for names in found], np.int64)


def targets(found: Sequence[tuple[str, ...]], labels: LabelVocabulary, *, multilabel: bool) -> np.ndarray:
    """int64 (N, 1): the number of each text's label, -1 where it is not among them; or (N, K), 1 for those that it has."""
    if not multilabel:
        numbers = [labels.index(names[0]) for names in found]
        return np.array([[-1 if number is None else number] for number in numbers], np.int64)
    rows = np.zeros((len(found), labels.size), np.int64)
    for row, names in enumerate(found):
        label_ids = [number for number in map(labels.index, names) if number is not None]
        rows[row, label_ids] = 1
    return rows


def balance(labels: np.ndarray, size: int) -> np.ndarray:
    """float32 (K,): how much each label counts so that all count alike, in the mean over the texts 1."""
    counts = np.bincount(labels[labels >= 0].ravel(), minlength=size) if labels.shape[1] == 1 else labels.sum(0)
    weights: np.ndarray = counts.sum() / (size * np.maximum(1, counts))
    return weights.astype(np.float32)


class ClassifierOutput(NamedTuple):
    """Log-probabilities of labels, and which of the texts were cut to what the model reads."""

    log_probs: np.ndarray  # float64 (N, K)
    truncated: np.ndarray  # bool (N,)


def score_predictions(log_probs: np.ndarray, labels: np.ndarray, unseen: np.ndarray, *, multilabel: bool) -> ItemStatistics:
    """What was said of texts (N, K), beside what is right of them: (N, 1), or (N, K) where there may be several."""
    keys = np.arange(len(labels))
    if multilabel:
        return multilabel_items(np.exp(log_probs), labels.astype(bool), unseen, keys)
    return label_items(log_probs, labels[:, 0], keys)
