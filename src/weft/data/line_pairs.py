"""Lines of a text two by two, as one text each: `<s> line </s> next line </s>`. What reads them learns that there are two.

An empty line ends a document: no pair goes across it. Two lines that are too long together stay apart, as does a line that
has nobody left to go with.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from weft.data.batch import WHOLE, cropped
from weft.data.corpus import Corpus
from weft.data.order import Batch, Lines, some


def paired(corpus: Corpus, *, longest: int, phase: int = 0) -> Corpus:
    """The same tokens with pairs for lines, none of more than `longest` positions: of each document the lines 1 and 2, 3 and 4
    and so on; with `phase` 1 the first line alone, then 2 and 3, 4 and 5."""
    starts = corpus.line_starts()
    lengths = np.diff(starts)
    full, at = lengths > 1, np.arange(len(lengths))  # an empty line is its </s> alone
    begun = np.maximum.accumulate(np.where(full, -1, at)) + 1  # the first line of each line's document
    first = full & ((at - begun) % 2 == phase)
    joined = first[:-1] & full[1:] & (1 + lengths[:-1] + lengths[1:] <= longest)
    return replace(corpus, starts=np.delete(starts, 1 + np.flatnonzero(joined)))


class PairedLines:
    """Every line once an epoch, two by two, in batches of like length: an Order. Who goes before in one epoch, comes after in
    the next."""

    def __init__(self, corpus: Corpus, *, longest: int, batch_tokens: int, seed: int) -> None:
        self.corpus = corpus
        self.phases = [
            Lines(paired(corpus, longest=longest, phase=phase), batch_tokens=batch_tokens, seed=seed) for phase in (0, 1)
        ]

    @property
    def rows(self) -> int:
        return self.phases[0].rows

    def batches(self, epoch: int) -> int:
        return self.phases[epoch % 2].batches(epoch)

    def batch(self, epoch: int, index: int) -> Batch:
        return self.phases[epoch % 2].batch(epoch, index)

    def anew(self, index: int) -> bool:
        return True

    def largest(self, share: Fraction = WHOLE) -> Batch:
        largest = max((phase.largest() for phase in self.phases), key=lambda batch: batch.tokens.size(1))
        return cropped(largest, share)

    def describe(self, epoch: int, index: int) -> str:
        phase = self.phases[epoch % 2]
        starts = phase.corpus.line_starts()[np.sort(phase.lines(epoch, index))]
        # the line that each pair starts with, in the corpus as it is
        numbers = np.searchsorted(self.corpus.line_starts(), starts, side="right")
        return some(f"{self.corpus.name}, pairs of lines from line", numbers)
