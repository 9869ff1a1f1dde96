"""How much of a word one direction explains: the maximum explainable variance, MEV (Ethayarajh 2019).

As in the code of the paper, the vectors of a word are centered: it is the first eigenvalue of their covariance over the
sum of all. Shapes: N words, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROOM = 2**30  # bytes of vectors that are kept at once; where they take more, the text is read again
NOTHING = 1e-12  # of their squared lengths: vectors that differ by less are one vector, but for rounding
BYTES = 4  # of a number that is kept


def explained_variance(rows: Tensor) -> float:
    """The fraction of the variance of rows (N, D) that their first principal component explains; NaN if all are equal."""
    rows = rows.double()
    centered = rows - rows.mean(0)
    # the smaller of the two has the same eigenvalues, but for zeros
    products = centered @ centered.T if len(rows) < rows.size(1) else centered.T @ centered
    whole = float(products.trace())
    if not whole > NOTHING * float(rows.square().sum()):
        return float("nan")
    return min(1.0, float(torch.linalg.eigvalsh(products)[-1]) / whole)


class VectorStore:
    """The vectors of all words in one stage, and which of the words each is."""

    def __init__(self) -> None:
        self.rows, self.numbers = list[Tensor](), list[Tensor]()

    def add(self, rows: Tensor, numbers: Tensor) -> None:
        """The words of a sentence (N, D) and their types (N,), -1 where they are none that are compared."""
        self.rows.append(rows.float())
        self.numbers.append(numbers)

    def shares(self, types: int) -> tuple[float, float]:
        """The MEV of a word, the mean over words, and that of all words together."""
        rows, numbers = torch.cat(self.rows), torch.cat(self.numbers)
        order = numbers.argsort(stable=True)
        ends = torch.searchsorted(numbers[order], torch.arange(types))
        each = [explained_variance(rows[own]) for own in order.tensor_split(ends)[1:]]
        return float(torch.tensor(each, dtype=torch.float64).nanmean()), explained_variance(rows)


def batches(widths: Sequence[Sequence[int]], words: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Side and number of every stage, in lists whose vectors fit into ROOM together; of one that does not fit, it alone."""
    found, room = list[list[tuple[int, int]]](), 0
    for side, (own, count) in enumerate(zip(widths, words, strict=True)):
        for stage, width in enumerate(own):
            room -= BYTES * width * count
            if not found or room < 0:
                found.append([])
                room = ROOM - BYTES * width * count
            found[-1].append((side, stage))
    return found
