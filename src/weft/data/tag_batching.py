"""Batches of tagged sentences.

Shapes: N sentences, B rows, S tokens, W words, C characters.
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

from weft.data.batch import FULL, crop_batch
from weft.data.batching import preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.text.tokenizers import Tokenizer


class TagBatch(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, the tokens of all words, </s>; padded with 0
    token_mask: Tensor  # bool (B, S)
    first: Tensor  # int64 (B, W): index of the first token of each word
    word_mask: Tensor  # bool (B, W), False on padding
    char_ids: Tensor | None  # int64 (B, W, C), padded with 0; None without a character encoder
    char_mask: Tensor | None  # bool (B, W, C), True for at least one character per word
    tags: Tensor  # int64 (B, W)


def padded_rows(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows padded with 0 to equal length, and their mask, False on padding: both (B, T)."""
    lengths = np.array([len(row) for row in rows], np.int64)
    mask = np.arange(max(1, int(lengths.max(initial=0)))) < lengths[:, None]
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = np.concatenate([np.zeros(0, np.int64), *rows])
    return padded, mask


def _char_batch(corpus: Corpus, members: list[range], word_mask: np.ndarray) -> tuple[Tensor, Tensor]:
    """Character IDs and mask, both (B, W, C), of the words `members` of each row, given the word mask (B, W)."""
    starts = corpus.line_starts()
    flat_ids, flat_mask = padded_rows(
        [corpus.tokens[starts[word] : starts[word + 1]].astype(np.int64) for row in members for word in row]
    )
    char_ids = np.zeros((*word_mask.shape, flat_ids.shape[1]), np.int64)
    char_mask = np.zeros(char_ids.shape, dtype=bool)
    char_ids[word_mask], char_mask[word_mask] = flat_ids, flat_mask
    char_mask[..., 0] = True  # pooling needs at least one position, also on padding
    return torch.from_numpy(char_ids), torch.from_numpy(char_mask)


@dataclass(frozen=True)
class Sentences(Examples[TagBatch]):
    """Tagged sentences. The words are the lines of a corpus, without the </s> after each."""

    words: Corpus
    char_ids: Corpus | None  # the characters of the same words
    edges: np.ndarray  # int64 (N + 1,): index of the first word of each sentence, and the number of all words
    tags: np.ndarray  # int64 (words,), -1 for a tag that is not in the training data

    def lengths(self) -> np.ndarray:
        """int64 (N,): number of tokens of each sentence, with <s> and </s>."""
        starts = self.words.line_starts()
        sizes: np.ndarray = np.maximum(3, 2 + np.diff((starts - np.arange(len(starts)))[self.edges]))
        return sizes

    def batch(self, members: np.ndarray) -> TagBatch:
        starts = self.words.line_starts()
        tokens, first, tags, words = [], [], [], []
        for index in members.tolist():
            low, high = self.edges[index], self.edges[index + 1]
            sizes = np.diff(starts[low : high + 1]) - 1  # without </s>
            row = np.delete(self.words.tokens[starts[low] : starts[high]].astype(np.int64), np.cumsum(sizes + 1) - 1)
            tokens.append(np.concatenate([[Tokenizer.bos_id], row, [Tokenizer.eos_id]]))
            first.append(np.minimum(1 + np.cumsum(sizes) - sizes, len(row) + 1))  # without tokens: the next token
            tags.append(self.tags[low:high])
            words.append(range(low, high))
        token_rows, token_mask = padded_rows(tokens)
        first_rows, word_mask = padded_rows(first)
        tag_rows, _ = padded_rows(tags)
        char_ids, char_mask = (None, None) if self.char_ids is None else _char_batch(self.char_ids, words, word_mask)
        tensors = [torch.from_numpy(array) for array in (token_rows, token_mask, first_rows, word_mask, tag_rows)]
        return TagBatch(tensors[0], tensors[1], tensors[2], tensors[3], char_ids, char_mask, tensors[4])

    def known(self) -> np.ndarray:
        """int64 (M,): indices of sentences whose tags are all in the training data."""
        ranges = enumerate(pairwise(self.edges.tolist()))
        return np.array([index for index, (low, high) in ranges if high > low and self.tags[low:high].min() >= 0], np.int64)

    def loss_count(self, members: np.ndarray) -> int:
        """Number of words."""
        return int(np.diff(self.edges)[members].sum())

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> TagBatch:
        """A batch with characters padded to the longest word of all sentences. Every word starts at <s>, so that a truncated
        batch is valid."""
        batch = self.batch(members)
        batch = batch._replace(first=torch.zeros_like(batch.first))
        if self.char_ids is not None and batch.char_ids is not None and batch.char_mask is not None:
            padding = int(np.diff(self.char_ids.line_starts()).max()) - batch.char_ids.size(2)
            char_ids, char_mask = F.pad(batch.char_ids, (0, padding)), F.pad(batch.char_mask, (0, padding))
            batch = batch._replace(char_ids=char_ids, char_mask=char_mask)
        return crop_batch(batch, fraction)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.words.name}, sentences", np.sort(members) + 1)
