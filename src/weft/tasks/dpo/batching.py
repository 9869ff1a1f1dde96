"""Batches of prompts with two responses.

Shapes: N pairs, B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.data.batch import as_tensor
from weft.data.batching import preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.tasks.responses.batching import make_row, pad_rows

if TYPE_CHECKING:
    from torch import Tensor


class PairBatch(NamedTuple):
    chosen: Tensor  # int64 (B, T + 1): <s>, prompt, response, </s>
    chosen_targets: Tensor  # bool (B, T + 1): tokens of the response
    rejected: Tensor  # int64 (B, T' + 1)
    rejected_targets: Tensor


def pair_lengths(columns: Sequence[Corpus]) -> np.ndarray:
    """int64 (2, N): tokens of the rows with the chosen and the rejected response, with <s> and </s>."""
    prompt, chosen, rejected = (np.diff(column.line_starts()) for column in columns)
    lengths: np.ndarray = prompt + np.stack([chosen, rejected])  # </s> of the prompt is replaced by <s>
    return lengths


@dataclass(frozen=True)
class ResponsePairs(Examples[PairBatch]):
    """Tokenized pairs that are not too long."""

    columns: Sequence[Corpus]  # prompt, chosen, rejected
    members: np.ndarray  # int64 (N,): pairs that are not too long
    characters: np.ndarray  # int64 (N, 2): the lengths of both responses

    def lengths(self) -> np.ndarray:
        lengths: np.ndarray = 2 * pair_lengths(self.columns).max(0)[self.members]
        return lengths

    def _side(self, members: np.ndarray, column: Corpus) -> tuple[Tensor, Tensor]:
        prompts, starts, row_starts = self.columns[0], self.columns[0].line_starts(), column.line_starts()
        rows = [
            make_row(
                [prompts.tokens[starts[index] : starts[index + 1] - 1]],
                [column.tokens[row_starts[index] : row_starts[index + 1]]],
            )
            for index in self.members[members].tolist()
        ]
        tokens, is_target = (pad_rows([row[part] for row in rows]) for part in (0, 1))
        return as_tensor(tokens), as_tensor(is_target)

    def batch(self, members: np.ndarray) -> PairBatch:
        return PairBatch(*self._side(members, self.columns[1]), *self._side(members, self.columns[2]))

    def loss_count(self, members: np.ndarray) -> int:
        return len(members)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.columns[0].name}, pairs", np.sort(self.members[members]) + 1)
