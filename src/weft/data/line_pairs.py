"""Lines of a text two by two, as one text each: `<s> line </s> next line </s>`. What reads them learns that there are two.

An empty line ends a document: no pair goes across it. Two lines that are too long together stay apart, as does a line that
has nobody left to go with.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from weft.data.batch import WHOLE, cropped
from weft.data.batching import Batch, Lines, preview
from weft.data.corpus import Corpus


def pair_lines(corpus: Corpus, *, max_length: int, phase: int = 0) -> Corpus:
    """The same tokens with pairs for lines, none of more than `longest` positions: of each document the lines 1 and 2, 3 and 4
    and so on; with `phase` 1 the first line alone, then 2 and 3, 4 and 5."""
    starts = corpus.line_starts()
    lengths = np.diff(starts)
    full, at = lengths > 1, np.arange(len(lengths))  # an empty line is its </s> alone
    begun = np.maximum.accumulate(np.where(full, -1, at)) + 1  # the first line of each line's document
    first = full & ((at - begun) % 2 == phase)
    joined = first[:-1] & full[1:] & (1 + lengths[:-1] + lengths[1:] <= max_length)
    return replace(corpus, starts=np.delete(starts, 1 + np.flatnonzero(joined)))


class LinePairBatchSampler:
    """Every line once an epoch, two by two, in batches of like length: an Order. Who goes before in one epoch, comes after in
    the next."""

    def __init__(self, corpus: Corpus, *, max_length: int, batch_tokens: int, seed: int) -> None:
        self.corpus = corpus
        self.phases = [
            Lines(pair_lines(corpus, max_length=max_length, phase=phase), batch_tokens=batch_tokens, seed=seed)
            for phase in (0, 1)
        ]

    @property
    def rows(self) -> int:
        return self.phases[0].rows

    def batches(self, epoch: int) -> int:
        return self.phases[epoch % 2].batches(epoch)

    def batch(self, epoch: int, index: int) -> Batch:
        return self.phases[epoch % 2].batch(epoch, index)

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = WHOLE) -> Batch:
        maximum = max((phase.largest_batch() for phase in self.phases), key=lambda batch: batch.tokens.size(1))
        return cropped(maximum, fraction)

    def describe(self, epoch: int, index: int) -> str:
        phase = self.phases[epoch % 2]
        starts = phase.corpus.line_starts()[np.sort(phase.lines(epoch, index))]
        # the line that each pair starts with, in the corpus as it is
        numbers = np.searchsorted(self.corpus.line_starts(), starts, side="right")
        return preview(f"{self.corpus.name}, pairs of lines from line", numbers)
