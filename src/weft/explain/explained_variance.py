"""Maximum explainable variance (MEV) of contextual word vectors (Ethayarajh 2019).

MEV is the fraction of the variance of a word's vectors that their first principal component explains. As in the paper's code,
the vectors are centered. Shapes: N words, D vector size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_BYTES = 2**30  # vectors stored at once; if all stages need more, the text is read several times
BYTES_PER_VALUE = 4  # float32
MIN_RELATIVE_VARIANCE = 1e-12  # of the squared norms; a smaller variance is rounding error


def explained_variance(rows: Tensor) -> float:
    """Fraction of the variance of rows (N, D) that their first principal component explains; NaN if all rows are equal."""
    rows = rows.double()
    centered = rows - rows.mean(0)
    # the nonzero eigenvalues of both products are the same: use the smaller matrix
    gram = centered @ centered.T if len(rows) < rows.size(1) else centered.T @ centered
    total = float(gram.trace())
    if not total > MIN_RELATIVE_VARIANCE * float(rows.square().sum()):
        return float("nan")
    return min(1.0, float(torch.linalg.eigvalsh(gram)[-1]) / total)


class VectorStore:
    """Vectors of all words in one stage, with the type ID of each word."""

    def __init__(self) -> None:
        self.rows, self.type_ids = list[Tensor](), list[Tensor]()

    def add(self, rows: Tensor, type_ids: Tensor) -> None:
        """Add the words of a sentence (N, D) and their type IDs (N,), -1 for types that are not compared."""
        self.rows.append(rows.float())
        self.type_ids.append(type_ids)

    def mev(self, num_types: int) -> tuple[float, float]:
        """MEV averaged over types 0 to num_types - 1, and the MEV of all words as the baseline."""
        rows, type_ids = torch.cat(self.rows), torch.cat(self.type_ids)
        order = type_ids.argsort(stable=True)
        starts = torch.searchsorted(type_ids[order], torch.arange(num_types))
        by_type = [explained_variance(rows[indices]) for indices in order.tensor_split(starts)[1:]]  # [0] has type ID -1
        return float(torch.tensor(by_type, dtype=torch.float64).nanmean()), explained_variance(rows)


def split_passes(widths: Sequence[Sequence[int]], num_words: Sequence[int]) -> list[list[tuple[int, int]]]:
    """All stages as (side, stage index), grouped so that the vectors of each group fit in MAX_BYTES, or are one stage.

    `widths` has the vector size of each stage of each side, `num_words` the number of words of each side.
    """
    passes, free = list[list[tuple[int, int]]](), 0
    for side, (side_widths, count) in enumerate(zip(widths, num_words, strict=True)):
        for stage, width in enumerate(side_widths):
            size = BYTES_PER_VALUE * width * count
            free -= size
            if not passes or free < 0:
                passes.append([])
                free = MAX_BYTES - size
            passes[-1].append((side, stage))
    return passes
