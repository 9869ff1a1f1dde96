"""Batches of preferences.

Shapes: N pairs, B rows, S positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.data.batch import FULL, crop_batch
from weft.data.batching import preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.data.text_batching import pack_rows

if TYPE_CHECKING:
    from torch import Tensor


class PairBatch(NamedTuple):
    chosen: Tensor  # int64 (B, S): <s>, tokens, </s>; with a prompt <s>, prompt, </s>, tokens, </s>; padded with 0
    chosen_mask: Tensor  # bool (B, S)
    chosen_segments: Tensor | None  # int64 (B, S), 1 after the prompt; None without prompts
    rejected: Tensor  # int64 (B, S'), and so on
    rejected_mask: Tensor
    rejected_segments: Tensor | None


def row_lengths(columns: Sequence[Corpus]) -> np.ndarray:
    """int64 (2, N): positions of the rows with the chosen and the rejected text, with <s> and one </s> per text."""
    *prompt, chosen, rejected = (np.diff(column.line_starts()) for column in columns)
    result: np.ndarray = 1 + np.stack([chosen, rejected]) + sum(prompt)
    return result


@dataclass(frozen=True)
class Preferences(Examples[PairBatch]):
    """Tokenized pairs, after their prompts if there are any."""

    columns: Sequence[Corpus]  # a prompt, chosen, rejected
    characters: np.ndarray  # int64 (N, 2): the lengths of both texts
    max_length: int  # in positions; longer rows are truncated

    def lengths(self) -> np.ndarray:
        """int64 (N,): positions of both rows, padded to the same length."""
        lengths: np.ndarray = 2 * np.minimum(row_lengths(self.columns).max(0), self.max_length)
        return lengths

    def side(self, members: np.ndarray, column: Corpus) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens, token mask and segments of these rows with the text of a column."""
        columns = [*self.columns[:-2], column]
        rows = [
            [corpus.tokens[corpus.line_starts()[index] : corpus.line_starts()[index + 1]] for corpus in columns]
            for index in members.tolist()
        ]
        return pack_rows(rows, max_length=self.max_length)

    def batch(self, members: np.ndarray) -> PairBatch:
        return PairBatch(*self.side(members, self.columns[-2]), *self.side(members, self.columns[-1]))

    def loss_count(self, members: np.ndarray) -> int:
        return len(members)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.columns[0].name}, pairs", np.sort(members) + 1)

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> PairBatch:
        return crop_batch(self.batch(members), fraction)
