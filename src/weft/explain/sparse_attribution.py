"""Attribution for models without gradients: n-gram models, and linear classifiers of terms.

    occlusion       the decrease of the log-probability if a token becomes <unk> (n-gram) or a word is removed (classifiers)
    coefficients    linear classifiers: the weight of each term times its value; these sum to the score

Shapes: K outputs, N tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.explain.explanation import TokenSpan
from weft.runs.run import AnyRun


class SparseAttribution(NamedTuple):
    """The attributions of one method for a text."""

    spans: list[TokenSpan]  # N: tokens, words or terms
    outputs: list[TokenSpan]  # K
    values: np.ndarray  # (K, N)
    log_probs: np.ndarray  # (K,): of the outputs
    method: str
    baseline: str  # as displayed
    expected_sum: np.ndarray | None = None  # (K,): the exact sum of the values, if the method has one


def check_method(run: AnyRun, method: str | None, supported: tuple[str, ...]) -> None:
    """Raise an error for a method that needs gradients."""
    if method is not None and method not in supported:
        raise UsageError("method", f"{run.config.arch} has no gradients for {method}", f"use {' or '.join(supported)}")
