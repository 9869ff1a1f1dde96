"""Labelled texts as batches: training batches as pure functions of (seed, epoch, index), evaluation in one pass.

Shapes: N examples, B rows, S positions, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from weft.data.batch import WHOLE, as_tensor, cropped
from weft.data.batching import preview
from weft.data.bucketing import B, Examples
from weft.data.corpus import Corpus
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


class TextBatch(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, tokens, </s>; of two texts <s>, tokens, </s>, tokens, </s>; padded with 0
    token_mask: Tensor  # bool (B, S)
    segments: Tensor | None  # int64 (B, S), 1 in the second text; None where there is one
    labels: Tensor  # int64 (B, 1), or (B, K) of 0 and 1 where a text may have several


def pack_rows(rows: Sequence[Sequence[np.ndarray]], *, max_length: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Texts, each one or two arrays of tokens that end with </s>, as rows: tokens, keep, segments. What is longer than
    `longest` positions is cut: the longer text first, each before its </s>."""
    tokens = [np.concatenate([[Tokenizer.bos_id], *_truncate(row, max_length - 1)]) for row in rows]
    width = max(map(len, tokens))
    lengths = np.array([len(row) for row in tokens])
    token_mask = np.arange(width) < lengths[:, None]
    padded = np.stack([np.pad(row, (0, width - len(row))) for row in tokens]).astype(np.int64)
    segments = None
    if len(rows[0]) > 1:
        first = np.array([1 + len(_truncate(row, max_length - 1)[0]) for row in rows])
        segments = as_tensor(((np.arange(width) >= first[:, None]) & token_mask).astype(np.int64))
    return as_tensor(padded), as_tensor(token_mask), segments


def _truncate(row: Sequence[np.ndarray], max_length: int) -> list[np.ndarray]:
    """The one or two texts of a row within `most` tokens in all, each with its </s>: of two, no text is cut below half."""
    lengths, sizes = [len(text) for text in row], [max_length]
    if sum(lengths) <= max_length:
        return list(row)
    if len(row) > 1:
        first = min(lengths[0], max(max_length - lengths[1], max_length - max_length // 2))
        sizes = [first, max_length - first]
    return [np.append(text[: size - 1], text[-1]) for text, size in zip(row, sizes, strict=True)]


class TextExamples(Examples[B], Protocol[B]):
    """Texts as tokens, a corpus for each column: what examples of any task that reads a text, or two, have in common."""

    columns: Sequence[Corpus]
    max_length: int  # positions of an example at most; what is longer is truncated

    def lengths(self) -> np.ndarray:
        """int64 (N,): the positions of each text."""
        sizes = sum(np.diff(column.line_starts()) for column in self.columns)
        return np.minimum(1 + sizes, self.max_length)

    def laid_out(self, members: np.ndarray) -> tuple[Tensor, Tensor, Tensor | None]:
        """The texts of these examples as rows: tokens, keep, segments."""
        starts = [column.line_starts() for column in self.columns]
        rows = [
            [column.tokens[start[at] : start[at + 1]] for column, start in zip(self.columns, starts, strict=True)]
            for at in members.tolist()
        ]
        return pack_rows(rows, max_length=self.max_length)

    def counted(self, members: np.ndarray) -> int:
        return len(members)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.columns[0].name}, examples", np.sort(members) + 1)


@dataclass(frozen=True)
class LabeledTexts(TextExamples[TextBatch]):
    """Texts as tokens, and what is right of each."""

    columns: Sequence[Corpus]
    labels: np.ndarray  # int64 (N, 1), -1 where training never saw the label; or (N, K) of 0 and 1
    unseen: np.ndarray  # int64 (N,): how many of a text's labels training never saw
    max_length: int

    def batch(self, members: np.ndarray) -> TextBatch:
        return TextBatch(*self.laid_out(members), as_tensor(self.labels[members]))

    def known(self) -> np.ndarray:
        """Texts whose label training saw."""
        return np.flatnonzero(self.labels.min(axis=1) >= 0)

    def largest(self, members: np.ndarray, fraction: Fraction = WHOLE) -> TextBatch:
        """Labels are no positions: a short text has as many."""
        batch = self.batch(members)
        return cropped(batch, fraction)._replace(labels=batch.labels)
