"""Captioners in comparisons: files and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.tasks.compare_spec import Compare, Predictions

if TYPE_CHECKING:
    import numpy as np

    from weft.metrics.items import ItemStatistics


def item_predictions(
    files: Sequence[str], references: Sequence[Sequence[str]], lengths: np.ndarray, items: ItemStatistics
) -> Predictions:
    """Statistics of each file, with its name, first reference and length in frames."""
    return Predictions(items, list(files), [texts[0] for texts in references], lengths, "file")


COMPARE = Compare(model_noun="captioner", length_unit="frames")
