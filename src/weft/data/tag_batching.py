"""Tagged sentences as batches: training batches as pure functions of (seed, epoch, index), evaluation in one pass.

Shapes: N sentences, B rows, S tokens, W words, C letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import WHOLE, cropped
from weft.data.batching import preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.text.tokenizers import Tokenizer


class TagBatch(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, the tokens of all words, </s>; padded with 0
    token_mask: Tensor  # bool (B, S)
    first: Tensor  # int64 (B, W): where each word begins among the tokens
    word_mask: Tensor  # bool (B, W), False on padding
    char_ids: Tensor | None  # int64 (B, W, C), padded with 0; None where words are not spelled
    char_mask: Tensor | None  # bool (B, W, C), at least one a word
    tags: Tensor  # int64 (B, W)


def padded_rows(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Arrays of several lengths as rows, filled up with 0; and where they are real."""
    lengths = np.array([len(row) for row in rows], np.int64)
    real = np.arange(max(1, int(lengths.max(initial=0)))) < lengths[:, None]
    padded = np.zeros(real.shape, np.int64)
    padded[real] = np.concatenate([np.zeros(0, np.int64), *rows])
    return padded, real


def _char_batch(corpus: Corpus, members: list[range], real: np.ndarray) -> tuple[Tensor, Tensor]:
    """The letters of the words in each row, and which of them are real, (B, W, C); `real` (B, W) says where words are."""
    starts = corpus.line_starts()
    flat, kept = padded_rows([corpus.tokens[starts[at] : starts[at + 1]].astype(np.int64) for row in members for at in row])
    letters = np.zeros((*real.shape, flat.shape[1]), np.int64)
    spelled = np.zeros(letters.shape, dtype=bool)
    letters[real], spelled[real] = flat, kept
    spelled[..., 0] = True  # a pool needs something to look at, on padding too
    return torch.from_numpy(letters), torch.from_numpy(spelled)


@dataclass(frozen=True)
class Sentences(Examples[TagBatch]):
    """Sentences whose words are the lines of a corpus: the tokens of each word, then </s>, which is none of it."""

    words: Corpus
    char_ids: Corpus | None  # the same words, spelled
    edges: np.ndarray  # int64 (N + 1,): the number of each sentence's first word, and of all words
    tags: np.ndarray  # int64 (words,), -1 where training never saw the tag

    def lengths(self) -> np.ndarray:
        """int64 (N,): the tokens of each sentence, <s> and </s> counted."""
        starts = self.words.line_starts()
        sizes: np.ndarray = np.maximum(3, 2 + np.diff((starts - np.arange(len(starts)))[self.edges]))
        return sizes

    def batch(self, members: np.ndarray) -> TagBatch:
        starts = self.words.line_starts()
        tokens, first, tags, letters = [], [], [], []
        for at in members.tolist():
            low, high = self.edges[at], self.edges[at + 1]
            sizes = np.diff(starts[low : high + 1]) - 1  # without </s>
            row = np.delete(self.words.tokens[starts[low] : starts[high]].astype(np.int64), np.cumsum(sizes + 1) - 1)
            tokens.append(np.concatenate([[Tokenizer.bos_id], row, [Tokenizer.eos_id]]))
            first.append(np.minimum(1 + np.cumsum(sizes) - sizes, len(row) + 1))  # a word without tokens: what comes next
            tags.append(self.tags[low:high])
            letters.append(range(low, high))
        rows, token_mask = padded_rows(tokens)
        begins, real = padded_rows(first)
        right, _ = padded_rows(tags)
        spelling, spelled = (None, None) if self.char_ids is None else _char_batch(self.char_ids, letters, real)
        whole = [torch.from_numpy(part) for part in (rows, token_mask, begins, real, right)]
        return TagBatch(whole[0], whole[1], whole[2], whole[3], spelling, spelled, whole[4])

    def known(self) -> np.ndarray:
        """Sentences whose tags training saw."""
        edges = pairwise(self.edges.tolist())
        return np.array([at for at, (low, high) in enumerate(edges) if high > low and self.tags[low:high].min() >= 0], np.int64)

    def counted(self, members: np.ndarray) -> int:
        """Words."""
        return int(np.diff(self.edges)[members].sum())

    def largest(self, members: np.ndarray, fraction: Fraction = WHOLE) -> TagBatch:
        """The sentences, spelled as if the longest word were among them; every word as if it began at <s>, so that whatever
        part of the batch is read is whole."""
        batch = self.batch(members)
        batch = batch._replace(first=torch.zeros_like(batch.first))
        if self.char_ids is not None and batch.char_ids is not None and batch.char_mask is not None:
            more = int(np.diff(self.char_ids.line_starts()).max()) - batch.char_ids.size(2)
            batch = batch._replace(char_ids=F.pad(batch.char_ids, (0, more)), char_mask=F.pad(batch.char_mask, (0, more)))
        return cropped(batch, fraction)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.words.name}, sentences", np.sort(members) + 1)
