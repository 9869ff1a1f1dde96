"""Ensembles of classifiers: the weighted mean of their probabilities.

The runs have the same labels. Each reads texts with its own tokenizer or features: a baseline can be combined with a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import UsageError
from weft.tasks.classification.evaluation import ClassifierOutput
from weft.tasks.classification.predict import Classifies, ClassPrediction, Texts
from weft.training.objective import ProgressCallback

if TYPE_CHECKING:
    from weft.runs.run import Run


class ClassifierEnsemble:
    """Several classifiers as one."""

    temperature = 1.0  # the members are calibrated, each with its own temperature

    def __init__(self, models: Sequence[Classifies], weights: Sequence[float]) -> None:
        self.models, self.weights = models, weights

    @property
    def max_length(self) -> int | None:
        return min((model.max_length for model in self.models if model.max_length is not None), default=None)

    def lengths(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """int64 (N,): the largest number of tokens of each example in any tokenizer."""
        lengths = [model.lengths(texts) for model in self.models if model.max_length is not None]
        longest: np.ndarray = np.max(lengths, axis=0)
        return longest

    def classify(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> ClassifierOutput:
        """Log-probabilities of the labels, ln sum_i w_i P_i, and which texts any of the models truncated."""
        outputs = [model.classify(texts, progress) for model in self.models]
        log_probs = [output.log_probs + math.log(weight) for output, weight in zip(outputs, self.weights, strict=True)]
        return ClassifierOutput(np.logaddexp.reduce(log_probs), np.any([output.truncated for output in outputs], axis=0))

    def log_probs(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray:
        """float64 (N, K): log-probabilities of the labels."""
        return self.classify(texts, progress).log_probs


def combine(runs: Sequence[Run[Texts, ClassPrediction]], weights: Sequence[float]) -> ClassifierEnsemble:
    """The ensemble of runs with the same labels and the same number of texts per example."""
    first = runs[0]
    if len(weights) != len(runs):
        raise UsageError("ensemble", f"{len(runs)} models, but {len(weights)} weights")
    if not all(0 < weight < math.inf for weight in weights) or abs(sum(weights) - 1) > 1e-6:
        raise UsageError("ensemble", f"weights must be positive and sum to 1, got {list(weights)}")
    for run in runs[1:]:
        for what, value, expected in (
            ("labels", list(run.labels), list(first.labels)),
            ("data.multilabel", run.config.data.multilabel, first.config.data.multilabel),
            ("texts per example", run.predictor.columns, first.predictor.columns),
        ):
            if value != expected:
                raise UsageError("ensemble", f"{run.path} has other {what} than {first.path}: {value} instead of {expected}")
    return ClassifierEnsemble([run.predictor.model for run in runs], weights)
