"""Gold labels as arrays, class weights, and statistics of predictions.

Shapes: N texts, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.metrics.classification import label_items, multilabel_items
from weft.metrics.items import ItemStatistics
from weft.text.labels import LabelVocabulary


def unseen(gold: Sequence[tuple[str, ...]], labels: LabelVocabulary) -> np.ndarray:
    """int64 (N,): number of gold labels of each text that are not in the training data."""
    return np.array([sum(labels.index(name) is None for name in names) for names in gold], np.int64)


def targets(gold: Sequence[tuple[str, ...]], labels: LabelVocabulary, *, multilabel: bool) -> np.ndarray:
    """int64 (N, 1): label IDs, -1 for labels that are not in the training data; with `multilabel` (N, K), multi-hot."""
    if not multilabel:
        label_ids = [labels.index(names[0]) for names in gold]
        return np.array([[-1 if label_id is None else label_id] for label_id in label_ids], np.int64)
    multi_hot = np.zeros((len(gold), labels.size), np.int64)
    for row, names in enumerate(gold):
        multi_hot[row, [label_id for label_id in map(labels.index, names) if label_id is not None]] = 1
    return multi_hot


def balance(targets: np.ndarray, num_labels: int) -> np.ndarray:
    """float32 (K,): balanced class weights, inversely proportional to label frequency, with a mean of 1 over the texts."""
    is_single = targets.shape[1] == 1
    counts = np.bincount(targets[targets >= 0].ravel(), minlength=num_labels) if is_single else targets.sum(0)
    weights: np.ndarray = counts.sum() / (num_labels * np.maximum(1, counts))
    return weights.astype(np.float32)


class ClassifierOutput(NamedTuple):
    """Log-probabilities of labels, and which texts were truncated to the maximum length of the model."""

    log_probs: np.ndarray  # float64 (N, K)
    truncated: np.ndarray  # bool (N,)


def score_predictions(log_probs: np.ndarray, targets: np.ndarray, unseen: np.ndarray, *, multilabel: bool) -> ItemStatistics:
    """Statistics of predictions: log_probs (N, K), targets and unseen as the functions above return them."""
    keys = np.arange(len(targets))
    if multilabel:
        return multilabel_items(np.exp(log_probs), targets.astype(bool), unseen, keys)
    return label_items(log_probs, targets[:, 0], keys)
