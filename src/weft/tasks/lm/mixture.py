"""Weights of a mixture of language models, by expectation-maximization on validation data (Jelinek and Mercer 1980).

Shapes: M models, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.runs.eval_data import EvalData
from weft.tasks.lm.members import Member

if TYPE_CHECKING:
    from weft.runs.run import Run

MAX_ITERATIONS = 10_000
TOLERANCE = 1e-7  # nats per token below the maximum of the log-likelihood


def mixture_weights(log_probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights (M,) that maximize the likelihood of N tokens with these log-probabilities (M, N) under each model.

    If no mixture is better than the best model, that model has weight 1.
    """
    best = log_probs.max(0)
    is_possible = best > -np.inf  # a token that is impossible for every model is so for every mixture
    probs = np.exp(log_probs[:, is_possible] - best[is_possible])  # relative to the best model, so that nothing underflows
    weights = np.full(len(log_probs), 1 / len(log_probs))
    if not probs.size:
        return weights
    for _ in range(MAX_ITERATIONS):
        # the gradient of the mean log-likelihood. The likelihood is concave, so the maximum is at most log(gradient.max()) away
        gradient = (probs / (weights @ probs)).mean(1)
        weights = weights * gradient
        if np.log(gradient.max()) < TOLERANCE:
            break
    weights /= weights.sum()
    with np.errstate(divide="ignore"):
        alone = np.log(probs).mean(1)
    if alone.max() >= np.log(weights @ probs).mean():
        weights = np.zeros(len(weights))
        weights[alone.argmax()] = 1.0
    return weights


def fit_weights(runs: Sequence[Run[str, None]]) -> list[float]:
    """The mixture weights of `runs` that maximize the likelihood of the validation data of the first."""
    first = runs[0]
    with TemporaryDirectory() as directory:
        corpus = EvalData(first.directory, first.config, first.vocabulary).valid_corpus(Path(directory))
        log_probs = np.stack([-Member(run).corpus_nll(corpus, None, None).astype(np.float64) for run in runs])
    return [float(weight) for weight in mixture_weights(log_probs)]
