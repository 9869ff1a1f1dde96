"""Batches of corrupted texts and their targets.

Shapes: N texts, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from weft.data.batch import FULL, crop_batch
from weft.data.batching import preview
from weft.data.bucketing import ExampleBatchSampler, Examples
from weft.data.corpus import Corpus
from weft.data.noise import Corrupted, Texts, join_texts
from weft.tasks.denoising.corruption import Corrupter
from weft.tasks.encoder_decoder.pair_batch import PairBatch, pad_rows
from weft.text.start_tokens import StartTokens
from weft.text.tokenizers import Tokenizer

CPU = torch.device("cpu")
SEED = 20200708  # of the noise of validation and evaluation, which is always the same, so that scores can be compared


def with_specials(start: Sequence[int], texts: Texts) -> list[np.ndarray]:
    """The tokens of each text after start tokens, with </s>."""
    return [np.concatenate([np.array(start, np.int64), text, [Tokenizer.eos_id]]) for text in texts.split()]


def pair_batch(corrupted: Corrupted, start: StartTokens) -> PairBatch:
    """Sources and targets with their start tokens and </s>; the first start token of a target is <s> or stands for it."""
    tokens, token_mask = pad_rows(with_specials(start.target, corrupted.target), CPU)
    token_mask[:, 1 : len(start.target)] = False
    return PairBatch(*pad_rows(with_specials(start.source, corrupted.source), CPU), tokens, token_mask)


@dataclass(frozen=True)
class NoisyTexts(Examples[PairBatch]):
    """Texts with noise. As examples they have the noise of validation; training adds other noise in each epoch."""

    corpus: Corpus
    corrupter: Corrupter

    def texts(self, members: np.ndarray | Sequence[int]) -> Texts:
        """The texts with these numbers, without </s>."""
        starts, tokens = self.corpus.line_starts(), self.corpus.tokens
        return join_texts([np.asarray(tokens[starts[index] : starts[index + 1] - 1]) for index in members])

    def corrupted(self, members: np.ndarray, *, seed: int = SEED, epoch: int = 0) -> Corrupted:
        """The texts with these numbers, with the noise of an epoch."""
        return self.corrupter.corrupt(self.texts(members), members, seed=seed, epoch=epoch)

    def lengths(self) -> np.ndarray:
        """int64 (N,): tokens of each text, with </s>."""
        return np.diff(self.corpus.line_starts())

    def batch(self, members: np.ndarray) -> PairBatch:
        return pair_batch(self.corrupted(members), self.corpus.start_tokens)

    def loss_count(self, members: np.ndarray) -> int:
        """Tokens of the targets."""
        return int((self.corrupted(members).target.lengths + 1).sum())

    def tokens(self, members: np.ndarray) -> int:
        corrupted, num_start = self.corrupted(members), len(self.corpus.start_tokens.source)
        return int(sum((side.lengths + 1).sum() for side in corrupted)) + num_start * len(members)

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> PairBatch:
        """The whole texts on both sides: noise hardly makes a text longer."""
        texts = self.texts(members)
        return crop_batch(pair_batch(Corrupted(texts, texts), self.corpus.start_tokens), fraction)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, lines", np.sort(members) + 1)


class NoisyBatches(ExampleBatchSampler[PairBatch]):
    """Texts in batches of similar length, with other noise in each epoch. A batch depends on (seed, epoch, index) alone."""

    def __init__(self, data: NoisyTexts, *, batch_tokens: int, seed: int) -> None:
        super().__init__(data, batch_tokens=batch_tokens, seed=seed)
        self.texts, self.seed = data, seed

    def batch(self, epoch: int, index: int) -> PairBatch:
        corrupted = self.texts.corrupted(self.buckets.members(epoch, index), seed=self.seed, epoch=epoch)
        return pair_batch(corrupted, self.texts.corpus.start_tokens)
