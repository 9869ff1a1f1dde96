"""Batches of files with their texts.

Shapes: B rows, T frames, F numbers per frame, U tokens of a text; a row has U + 1 tokens, of which the last ends the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import Tensor

from weft.data.batch import FULL, as_tensor, crop_tensor
from weft.data.batching import pad_lines, preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.data.frames import Frames


class FrameBatch(NamedTuple):
    source: Tensor  # (B, T, F): frames; padded with 0 at the end
    source_mask: Tensor  # bool (B, T), False on padding
    tokens: Tensor  # int64 (B, U + 1): <s>, tokens, </s>; right-padded with 0
    token_mask: Tensor  # bool (B, U + 1)


def pad_frames(rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Frames (T, F) of several files as a batch (B, T, F), and its mask (B, T)."""
    lengths = np.array([len(row) for row in rows])
    padded = np.zeros((len(rows), int(lengths.max()), rows[0].shape[1]), dtype=rows[0].dtype)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return as_tensor(padded), as_tensor(np.arange(padded.shape[1]) < lengths[:, None])


@dataclass(frozen=True)
class FrameExamples(Examples[FrameBatch]):
    """Files and their texts. `records` (N,) are the numbers of the examples among all records of the split: files that cannot
    be used are left out."""

    source: Frames
    target: Corpus
    records: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """int64 (N, 2): frames, and tokens with </s>."""
        sizes: np.ndarray = np.stack([self.source.lengths(), np.diff(self.target.line_starts())], axis=1)[self.records]
        return sizes

    def lengths(self) -> np.ndarray:
        """int64 (N,): frames; texts are shorter."""
        lengths: np.ndarray = self.sizes.max(axis=1)
        return lengths

    def batch(self, members: np.ndarray) -> FrameBatch:
        records = self.records[members]
        return FrameBatch(*pad_frames([self.source.frames(record) for record in records]), *pad_lines(self.target, records))

    def loss_count(self, members: np.ndarray) -> int:
        """Tokens of the texts."""
        return int(self.sizes[members, 1].sum())

    def tokens(self, members: np.ndarray) -> int:
        return int(self.sizes[members].sum())

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> FrameBatch:
        """The longest files, each with a text as long as the longest of all; files are shortened."""
        batch = self.batch(members)
        longest = self.records[np.argpartition(-self.sizes[:, 1], len(members) - 1)[: len(members)]]
        source, source_mask = (crop_tensor(part, fraction) for part in batch[:2])
        return FrameBatch(source, source_mask, *(crop_tensor(part, fraction) for part in pad_lines(self.target, longest)))

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.source.name}, records", np.sort(self.records[members]) + 1)
