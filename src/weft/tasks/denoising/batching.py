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
from weft.text.tokenizers import Tokenizer

CPU = torch.device("cpu")
SEED = 20200708  # of the noise of validation and evaluation, which is always the same, so that scores can be compared


def pair_batch(corrupted: Corrupted) -> PairBatch:
    """Sources with </s>, and targets with <s> and </s>."""
    sources = [np.append(source, Tokenizer.eos_id) for source in corrupted.source.split()]
    targets = [np.concatenate([[Tokenizer.bos_id], target, [Tokenizer.eos_id]]) for target in corrupted.target.split()]
    return PairBatch(*pad_rows(sources, CPU), *pad_rows(targets, CPU))


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
        return pair_batch(self.corrupted(members))

    def loss_count(self, members: np.ndarray) -> int:
        """Tokens of the targets."""
        return int((self.corrupted(members).target.lengths + 1).sum())

    def tokens(self, members: np.ndarray) -> int:
        corrupted = self.corrupted(members)
        return int(sum((side.lengths + 1).sum() for side in corrupted))

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> PairBatch:
        """The whole texts on both sides: noise hardly makes a text longer."""
        texts = self.texts(members)
        return crop_batch(pair_batch(Corrupted(texts, texts)), fraction)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, lines", np.sort(members) + 1)


class NoisyBatches(ExampleBatchSampler[PairBatch]):
    """Texts in batches of similar length, with other noise in each epoch. A batch depends on (seed, epoch, index) alone."""

    def __init__(self, data: NoisyTexts, *, batch_tokens: int, seed: int) -> None:
        super().__init__(data, batch_tokens=batch_tokens, seed=seed)
        self.texts, self.seed = data, seed

    def batch(self, epoch: int, index: int) -> PairBatch:
        return pair_batch(self.texts.corrupted(self.buckets.members(epoch, index), seed=self.seed, epoch=epoch))
