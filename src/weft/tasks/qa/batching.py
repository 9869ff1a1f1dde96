"""Questions and passages as batches: a passage that is longer than what is read at once comes in windows that overlap.

A window is `<s> question </s> part of the passage </s>`. All windows of a question are examples of their own: in those that do
not hold its whole answer there is none.

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

MARKS = 3  # <s>, and </s> twice


class QABatch(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, question, </s>, window of the passage, </s>; padded with 0
    token_mask: Tensor  # bool (B, S)
    segments: Tensor | None  # int64 (B, S), 1 in the window and its </s>
    spans: Tensor  # int64 (B, 2): where the answer's first and its last token stand; both 0 where there is none


class PassageWindow(NamedTuple):
    """Windows, in the order of their questions."""

    question: np.ndarray  # int64 (M,): whose it is
    begin: np.ndarray  # int64 (M,): the token of the passage that it begins with
    size: np.ndarray  # int64 (M,): how many tokens of the passage it has


def question_tokens(lengths: np.ndarray, max_length: int) -> np.ndarray:
    """int64 (N,): how many tokens of questions of `lengths` (N,) are read: half of what there is room for is the passage's."""
    read: np.ndarray = np.minimum(lengths, (max_length - MARKS) // 2)
    return read


def windows(questions: np.ndarray, passages: np.ndarray, *, max_length: int, stride: int) -> PassageWindow:
    """The windows of passages with these lengths (N,), after questions with these (N,): each token is in a window, the last of
    which ends with the passage."""
    room = max_length - MARKS - question_tokens(questions, max_length)
    step = np.minimum(stride, room)
    counts = 1 + -(-np.maximum(0, passages - room) // step)
    question = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(question)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = number * step[question]
    return PassageWindow(question, begin, np.minimum(room[question], passages[question] - begin))


@dataclass(frozen=True)
class Passages(Examples[QABatch]):
    """Questions and passages as tokens, and what is to be said."""

    questions: Corpus
    passages: Corpus
    spans: np.ndarray  # int64 (N, 2): the first and the last token of the answer in its passage; -1 where there is none
    max_length: int
    stride: int

    def _sizes(self, corpus: Corpus) -> np.ndarray:
        return np.diff(corpus.line_starts()) - 1  # without </s>

    @cached_property
    def question_lengths(self) -> np.ndarray:
        """int64 (N,): tokens of each question that are read."""
        return question_tokens(self._sizes(self.questions), self.max_length)

    @cached_property
    def passage_windows(self) -> PassageWindow:
        return windows(self._sizes(self.questions), self._sizes(self.passages), max_length=self.max_length, stride=self.stride)

    def lengths(self) -> np.ndarray:
        """int64 (M,): the positions of each window."""
        lengths: np.ndarray = MARKS + self.question_lengths[self.passage_windows.question] + self.passage_windows.size
        return lengths

    def before(self, members: np.ndarray) -> np.ndarray:
        """int64 (B,): the position at which each window's part of the passage begins."""
        lengths: np.ndarray = (
            self.question_lengths[self.passage_windows.question[members]] + 2
        )  # <s>, and the </s> of the question
        return lengths

    def targets(self, members: np.ndarray) -> np.ndarray:
        """int64 (B, 2): the position of the answer in these windows; 0 if it is not complete."""
        places = self.spans[self.passage_windows.question[members]] - self.passage_windows.begin[members][:, None]
        inside = (places[:, 0] >= 0) & (places[:, 1] < self.passage_windows.size[members])
        inside &= self.spans[self.passage_windows.question[members], 0] >= 0
        return np.where(inside[:, None], places + self.before(members)[:, None], 0)

    def batch(self, members: np.ndarray) -> QABatch:
        end, rows = np.array([Tokenizer.eos_id]), []
        asked, about = self.questions.line_starts(), self.passages.line_starts()
        for index in members.tolist():
            number = int(self.passage_windows.question[index])
            low = int(about[number] + self.passage_windows.begin[index])
            question = self.questions.tokens[asked[number] : asked[number] + self.question_lengths[number]]
            part = self.passages.tokens[low : low + int(self.passage_windows.size[index])]
            rows.append([np.concatenate([question, end]), np.concatenate([part, end])])
        return QABatch(*pack_rows(rows, max_length=self.max_length), as_tensor(self.targets(members)))

    def loss_count(self, members: np.ndarray) -> int:
        """Windows."""
        return len(members)

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> QABatch:
        """The windows as if none held an answer, so that whatever part of the batch is read is whole."""
        batch = self.batch(members)
        return crop_batch(batch, fraction)._replace(spans=batch.spans * 0)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.questions.name}, lines", np.sort(np.unique(self.passage_windows.question[members])) + 1)
