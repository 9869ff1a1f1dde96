"""Statistics by the frequency of a token or word in the training data.

Shapes: T tokens, N items, F frequency classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

FREQUENCIES = (1, 10, 100, 1_000, 10_000)  # lower bounds of the frequency classes after the first


def by_frequency(
    statistics: Mapping[str, np.ndarray], items: np.ndarray, occurrences: np.ndarray, num_items: int
) -> dict[str, np.ndarray]:
    """Sums by item and frequency class, (num_items, F) each.

    Per token: its statistics (T,), the index of its item (T,), and its number of occurrences in the training data (T,).
    """
    num_classes = len(FREQUENCIES) + 1
    cells = items * num_classes + np.digitize(occurrences, FREQUENCIES)
    return {
        name: np.bincount(cells, values, num_items * num_classes).reshape(num_items, num_classes)
        for name, values in statistics.items()
    }
