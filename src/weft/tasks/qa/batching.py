"""Batches of questions and passages. A passage that is too long for the model is split into overlapping windows.

A window is `<s> question </s> part of the passage </s>`. Each window is one example; if it does not contain the complete
answer, its target is "no answer".

Shapes: N questions, M windows, B rows, S positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.data.batch import FULL, as_tensor, crop_batch
from weft.data.batching import preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.data.text_batching import pack_rows
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

NUM_SPECIAL_TOKENS = 3  # <s>, and </s> twice


class QABatch(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, question, </s>, window of the passage, </s>; padded with 0
    token_mask: Tensor  # bool (B, S)
    segments: Tensor | None  # int64 (B, S), 1 in the window and its </s>
    spans: Tensor  # int64 (B, 2): positions of the first and last token of the answer; both 0 if there is no answer


class PassageWindows(NamedTuple):
    """The windows of all passages, in the order of the questions."""

    question: np.ndarray  # int64 (M,): index of the question
    start: np.ndarray  # int64 (M,): index of the first token in the passage
    size: np.ndarray  # int64 (M,): number of tokens of the passage


def truncated_lengths(lengths: np.ndarray, max_length: int) -> np.ndarray:
    """int64 (N,): lengths of questions after truncation. A question may use half of the tokens of a window."""
    truncated: np.ndarray = np.minimum(lengths, (max_length - NUM_SPECIAL_TOKENS) // 2)
    return truncated


def split_passages(
    question_lengths: np.ndarray, passage_lengths: np.ndarray, *, max_length: int, stride: int
) -> PassageWindows:
    """Split passages into windows, which start every `stride` tokens until the end of the passage is reached; lengths (N,)."""
    capacity = max_length - NUM_SPECIAL_TOKENS - truncated_lengths(question_lengths, max_length)
    step = np.minimum(stride, capacity)
    counts = 1 + -(-np.maximum(0, passage_lengths - capacity) // step)
    question = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(question)) - np.repeat(np.cumsum(counts) - counts, counts)  # of the window in its passage
    start = index * step[question]
    return PassageWindows(question, start, np.minimum(capacity[question], passage_lengths[question] - start))


@dataclass(frozen=True)
class QAExamples(Examples[QABatch]):
    """Tokenized questions and passages, and the answers as token spans."""

    questions: Corpus
    passages: Corpus
    spans: np.ndarray  # int64 (N, 2): first and last token of the answer in the passage; -1 if there is no answer
    max_length: int
    stride: int

    def _lengths(self, corpus: Corpus) -> np.ndarray:
        return np.diff(corpus.line_starts()) - 1  # without </s>

    @cached_property
    def question_lengths(self) -> np.ndarray:
        """int64 (N,): number of tokens of each question after truncation."""
        return truncated_lengths(self._lengths(self.questions), self.max_length)

    @cached_property
    def windows(self) -> PassageWindows:
        lengths = self._lengths(self.questions), self._lengths(self.passages)
        return split_passages(*lengths, max_length=self.max_length, stride=self.stride)

    def lengths(self) -> np.ndarray:
        """int64 (M,): number of positions of each window."""
        lengths: np.ndarray = NUM_SPECIAL_TOKENS + self.question_lengths[self.windows.question] + self.windows.size
        return lengths

    def passage_positions(self, members: np.ndarray) -> np.ndarray:
        """int64 (B,): position of the first passage token in each window."""
        positions: np.ndarray = self.question_lengths[self.windows.question[members]] + 2  # after <s>, question, </s>
        return positions

    def targets(self, members: np.ndarray) -> np.ndarray:
        """int64 (B, 2): positions of the first and last token of the answer; 0 if the window does not contain all of it."""
        spans = self.spans[self.windows.question[members]]
        in_window = spans - self.windows.start[members][:, None]
        is_inside = (spans[:, 0] >= 0) & (in_window[:, 0] >= 0) & (in_window[:, 1] < self.windows.size[members])
        return np.where(is_inside[:, None], in_window + self.passage_positions(members)[:, None], 0)

    def batch(self, members: np.ndarray) -> QABatch:
        eos, rows = np.array([Tokenizer.eos_id]), []
        question_starts, passage_starts = self.questions.line_starts(), self.passages.line_starts()
        for window in members.tolist():
            index = int(self.windows.question[window])
            start = int(passage_starts[index] + self.windows.start[window])
            question = self.questions.tokens[question_starts[index] : question_starts[index] + self.question_lengths[index]]
            passage = self.passages.tokens[start : start + int(self.windows.size[window])]
            rows.append([np.concatenate([question, eos]), np.concatenate([passage, eos])])
        return QABatch(*pack_rows(rows, max_length=self.max_length), as_tensor(self.targets(members)))

    def loss_count(self, members: np.ndarray) -> int:
        """The number of windows."""
        return len(members)

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> QABatch:
        """The batch without answers: their positions may be outside a cropped batch."""
        batch = self.batch(members)
        return crop_batch(batch, fraction)._replace(spans=batch.spans * 0)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.questions.name}, lines", np.sort(np.unique(self.windows.question[members])) + 1)
