"""Pairs of consecutive lines as one sequence, `<s> line </s> next line </s>`, to train models that read two texts.

An empty line ends a document: no pair crosses it. Two lines that are too long for one sequence stay separate, and so does the
last line of a document if it has no partner.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from weft.data.batch import FULL, crop_batch
from weft.data.batching import Batch, Lines, preview
from weft.data.corpus import Corpus


def pair_lines(corpus: Corpus, *, max_length: int, phase: int = 0) -> Corpus:
    """A corpus whose lines are pairs of at most `max_length` positions: in each document lines 1 and 2, 3 and 4, and so on;
    with `phase` 1 the first line alone, then 2 and 3, 4 and 5."""
    starts = corpus.line_starts()
    lengths = np.diff(starts)
    is_nonempty, indices = lengths > 1, np.arange(len(lengths))  # an empty line has only </s>
    document_starts = np.maximum.accumulate(np.where(is_nonempty, -1, indices)) + 1  # first line of the document of each line
    is_first = is_nonempty & ((indices - document_starts) % 2 == phase)
    is_joined = is_first[:-1] & is_nonempty[1:] & (1 + lengths[:-1] + lengths[1:] <= max_length)
    return replace(corpus, starts=np.delete(starts, 1 + np.flatnonzero(is_joined)))


class LinePairBatchSampler:
    """A BatchSampler of line pairs: every line once per epoch, in batches of similar length. A line that is first in an even
    epoch is second in an odd one."""

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

    def largest_batch(self, fraction: Fraction = FULL) -> Batch:
        largest = max((phase.largest_batch() for phase in self.phases), key=lambda batch: batch.tokens.size(1))
        return crop_batch(largest, fraction)

    def describe(self, epoch: int, index: int) -> str:
        phase = self.phases[epoch % 2]
        starts = phase.corpus.line_starts()[np.sort(phase.lines(epoch, index))]
        # 1-based line of the original corpus where each pair starts
        numbers = np.searchsorted(self.corpus.line_starts(), starts, side="right")
        return preview(f"{self.corpus.name}, pairs of lines from line", numbers)
