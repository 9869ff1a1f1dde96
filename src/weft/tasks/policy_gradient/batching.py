"""Batches of prompts, and of their responses.

Shapes: N prompts, B rows, S positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.data.batch import as_tensor
from weft.data.batching import preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from weft.data.dataset import Dataset
    from weft.data.formats import TableRecord


class PromptBatch(NamedTuple):
    members: Tensor  # int64 (B,): indices of prompts


class RolloutBatch(NamedTuple):
    """Sampled responses. All tensors but `tokens` have a first column of zeros, which belongs to no target."""

    tokens: Tensor  # int64 (R, T + 1): prompt, response, padding
    mask: Tensor  # bool (R, T + 1): tokens of the response
    old_log_probs: Tensor  # (R, T + 1) under the policy that sampled them
    reference_log_probs: Tensor  # (R, T + 1) under the initial model
    advantages: Tensor  # (R, T + 1), or (R, 1) of whole responses
    returns: Tensor  # (R, T + 1): targets of the value function; (R, 1) of zeros without one


@dataclass(frozen=True)
class Prompts(Examples[PromptBatch]):
    """Tokenized prompts that leave room for a response."""

    corpus: Corpus
    members: np.ndarray  # int64 (N,): prompts that are not too long
    texts: list[str]  # of these
    dataset: Dataset[TableRecord]
    row_tokens: int  # tokens of the responses to a prompt

    def ids(self, index: int) -> list[int]:
        """<s> and the tokens of a prompt in its template."""
        starts, number = self.corpus.line_starts(), int(self.members[index])
        tokens: list[int] = self.corpus.tokens[starts[number] : starts[number + 1] - 1].tolist()
        return [Tokenizer.bos_id, *tokens]

    def lengths(self) -> np.ndarray:
        """int64 (N,): tokens of each prompt, and of the responses to it."""
        lengths: np.ndarray = np.diff(self.corpus.line_starts())[self.members] + self.row_tokens
        return lengths

    def location(self, index: int) -> str:
        return self.dataset.location(int(self.members[index]))

    def batch(self, members: np.ndarray) -> PromptBatch:
        return PromptBatch(as_tensor(members))

    def loss_count(self, members: np.ndarray) -> int:
        return len(members)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, prompts", np.sort(self.members[members]) + 1)
