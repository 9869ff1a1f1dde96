"""Metrics of denoising: the loss of targets, and the restored texts against the original ones."""

from __future__ import annotations

import numpy as np

from weft.metrics.classification import ratio
from weft.metrics.items import Array, Sums
from weft.metrics.lm import LANGUAGE_VALIDATION, LOSSES
from weft.metrics.metric import Metric
from weft.metrics.seq2seq import TRANSLATION


def _accuracy(totals: Sums) -> Array:
    return 100 * ratio(totals["correct"], totals["tokens"], empty=np.nan)


# of the target, given the tokens before: restored texts are compared by the other metrics
_TOKEN_ACCURACY = Metric("token_accuracy", _accuracy, "higher", requires="correct", percent=True, per_token=True)
RESTORATION = tuple(metric for metric in TRANSLATION if not metric.name.startswith("bleu"))
TARGETS = (*LOSSES, _TOKEN_ACCURACY)
DENOISING = (*TARGETS, *RESTORATION)
DENOISING_VALIDATION = (*LANGUAGE_VALIDATION, _TOKEN_ACCURACY)
