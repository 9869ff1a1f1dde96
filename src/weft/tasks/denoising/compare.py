"""Denoising models in comparisons: corrupted texts, and the original ones as references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.metrics.items import ItemStatistics
from weft.tasks.compare_spec import Compare, Predictions

if TYPE_CHECKING:
    from weft.runs.run import Run


def item_predictions(run: Run[Any, Any], sources: Sequence[str], texts: Sequence[str], items: ItemStatistics) -> Predictions:
    """Statistics of each text, with the corrupted text as input and the original one as reference."""
    lengths = run.vocabulary.encode_concatenated(list(texts))[1].astype(np.int64)
    return Predictions(items, list(sources), list(texts), lengths, "text")


COMPARE = Compare(
    model_noun="denoising model",
    same_items="use the same data, tokenizer and noise for both: the corrupted texts depend on all of them",
)
