"""Statistics by how frequent a token, or a word, was in training.

Shapes: T tokens, N items, F classes of frequency.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

FREQUENCIES = (1, 10, 100, 1_000, 10_000)  # occurrences in training where the next class begins


def by_frequency(
    values: Mapping[str, np.ndarray], items: np.ndarray, occurrences: np.ndarray, size: int
) -> dict[str, np.ndarray]:
    """Statistics of tokens (T,), summed by item (T,) and class of frequency: (size, F) each."""
    places = items * (len(FREQUENCIES) + 1) + np.digitize(occurrences, FREQUENCIES)
    shape = (size, len(FREQUENCIES) + 1)
    return {name: np.bincount(places, each, shape[0] * shape[1]).reshape(shape) for name, each in values.items()}
