"""Attribution for models without gradients: n-gram models, and linear classifiers of terms.

    occlusion    what is lost where a token becomes <unk> (n-gram), or where a word is left out (classifiers)
    exact        of linear classifiers: the weight of each term times its value, which adds up to the score

Shapes: K questions, N tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.explain.explanation import TokenSpan
from weft.runs.run import AnyRun


class SparseAttribution(NamedTuple):
    """What was found out about a text."""

    pieces: list[TokenSpan]  # N: tokens, words or terms
    outputs: list[TokenSpan]  # K
    values: np.ndarray  # (K, N)
    output: np.ndarray  # (K,): log-probabilities
    method: str
    baseline: str  # in words
    added: np.ndarray | None = None  # (K,): what the values add up to


def refuse_gradients(run: AnyRun, method: str | None, known: tuple[str, ...]) -> None:
    if method is not None and method not in known:
        others = " or ".join(known)
        raise UsageError("method", f"{run.config.arch} has no gradients for {method}", f"use {others}")
