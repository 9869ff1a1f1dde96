"""The prediction for one source, and the score of a given target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Prediction(NamedTuple):
    text: str  # including the prefix
    token_ids: list[int]  # generated tokens, including EOS, without the prefix
    score: float  # ranks the hypotheses of a beam search: log_prob with length penalty; samples are not ranked
    log_prob: float  # of `token_ids`; with shallow fusion, the weighted sum of both models
    prefix: Sequence[int] = ()  # tokens that the output was forced to start with
    truncated: bool = False  # ended by max_new_tokens, not by EOS
    alignment: Any = None  # attention to the source, if requested
    source: str | None = None  # the corrupted text and its target, if noise was added to the input
    target: str | None = None
    alternatives: tuple[Prediction, ...] = ()  # further outputs: the rest of the n-best list, or other samples

    def ranked(self) -> list[Prediction]:
        """This prediction and its alternatives, in order."""
        return [self._replace(alternatives=()), *self.alternatives]


class PairScore(NamedTuple):
    """The log-probability of a target given its source, a text or a file; the tokens include </s>."""

    source: str
    target: str
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]

    @property
    def text(self) -> str:
        """The pair as an input line."""
        return f"{self.source}\t{self.target}"

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_prob / len(self.tokens)))
