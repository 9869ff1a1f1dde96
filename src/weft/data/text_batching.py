"""Batches of labeled texts.

Shapes: N examples, B rows, S positions, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from weft.data.batch import FULL, as_tensor, crop_batch
from weft.data.batching import preview
from weft.data.bucketing import B, Examples
from weft.data.corpus import Corpus
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


class TextBatch(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, tokens, </s>; for two texts <s>, tokens, </s>, tokens, </s>; padded with 0
    token_mask: Tensor  # bool (B, S)
    segments: Tensor | None  # int64 (B, S), 1 in the second text; None for one text
    labels: Tensor  # int64 (B, 1), or (B, K) of 0 and 1 for multilabel data
    # float32 (B, K), or (B, K, 2) for multilabel data: log-probabilities of a teacher; None without a teacher
    soft_labels: Tensor | None = None


def pack_rows(rows: Sequence[Sequence[np.ndarray]], *, max_length: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, token mask and segments of rows of one or two texts, each of which ends with </s>. Rows with more than
    `max_length` positions are truncated: the longer text first, each before its </s>."""
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
    """The one or two texts of a row, truncated to `max_length` tokens in total, each with its </s>. Neither of two texts is
    truncated to less than half of `max_length`."""
    lengths, sizes = [len(text) for text in row], [max_length]
    if sum(lengths) <= max_length:
        return list(row)
    if len(row) > 1:
        first = min(lengths[0], max(max_length - lengths[1], max_length - max_length // 2))
        sizes = [first, max_length - first]
    return [np.append(text[: size - 1], text[-1]) for text, size in zip(row, sizes, strict=True)]


class TextExamples(Examples[B], Protocol[B]):
    """Base class of examples with one or two texts, in one corpus per column."""

    columns: Sequence[Corpus]
    max_length: int  # in positions; longer examples are truncated

    def lengths(self) -> np.ndarray:
        """int64 (N,): number of positions of each example."""
        sizes = sum(np.diff(column.line_starts()) for column in self.columns)
        return np.minimum(1 + sizes, self.max_length)

    def packed_rows(self, members: np.ndarray) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens, token mask and segments of these examples."""
        starts = [column.line_starts() for column in self.columns]
        rows = [
            [column.tokens[start[index] : start[index + 1]] for column, start in zip(self.columns, starts, strict=True)]
            for index in members.tolist()
        ]
        return pack_rows(rows, max_length=self.max_length)

    def loss_count(self, members: np.ndarray) -> int:
        return len(members)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.columns[0].name}, examples", np.sort(members) + 1)


@dataclass(frozen=True)
class LabeledTexts(TextExamples[TextBatch]):
    """Tokenized texts with gold labels."""

    columns: Sequence[Corpus]
    labels: np.ndarray  # int64 (N, 1), -1 for a label that is not in the training data; or (N, K) of 0 and 1
    unseen: np.ndarray  # int64 (N,): number of labels of each text that are not in the training data
    max_length: int
    soft_labels: np.ndarray | None = None  # float32 (N, K) or (N, K, 2): log-probabilities of a teacher

    def batch(self, members: np.ndarray) -> TextBatch:
        soft_labels = None if self.soft_labels is None else as_tensor(self.soft_labels[members])
        return TextBatch(*self.packed_rows(members), as_tensor(self.labels[members]), soft_labels)

    def known(self) -> np.ndarray:
        """int64 (M,): indices of texts whose label is in the training data."""
        return np.flatnonzero(self.labels.min(axis=1) >= 0)

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> TextBatch:
        """A batch of these examples with truncated texts; labels have no positions to truncate."""
        batch = self.batch(members)
        return crop_batch(batch, fraction)._replace(labels=batch.labels, soft_labels=batch.soft_labels)
