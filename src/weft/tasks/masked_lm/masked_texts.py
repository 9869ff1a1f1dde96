"""Texts with fixed masks, so that the losses of two models can be compared.

Shapes: N texts, B rows, S positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from weft.data.batching import preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.models.encoder import EncoderInput
from weft.tasks.masked_lm.objective import SEED, MaskedLMObjective, Masking, mask_tokens, texts
from weft.training.objective import Loss

BATCH_TOKENS = 4096  # positions of texts that are masked at once


class MaskedBatch(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, tokens, </s>; padded with 0
    token_mask: Tensor  # bool (B, S), False on padding
    masked_tokens: Tensor  # int64 (B, S)
    targets_mask: Tensor  # bool (B, S), True on tokens to predict


@dataclass(frozen=True)
class MaskedExamples(Examples[MaskedBatch]):
    """Lines, or windows of running text, with masks that are always the same. They are made on first use: training uses
    different ones in each step."""

    corpus: Corpus
    masking: Callable[[], Masking]
    window: int

    @cached_property
    def _texts(self) -> list[MaskedBatch]:
        """One row per text; only windows, which have the same width, are padded."""
        masking, generator = self.masking(), torch.Generator().manual_seed(SEED)
        lengths = None if self.corpus.starts is None else np.diff(self.corpus.starts) + 1
        rows: dict[int, MaskedBatch] = {}
        for batch in texts(self.corpus, window=self.window, batch_tokens=BATCH_TOKENS):
            text = batch.text
            masked = mask_tokens(text.tokens, text.token_mask, masking, generator)
            parts = MaskedBatch(text.tokens, text.token_mask, *masked)
            for row, key in enumerate(batch.keys.tolist()):
                size = text.tokens.size(1) if lengths is None else int(lengths[key])
                rows[key] = MaskedBatch(*(part[row, :size] for part in parts))
        return [rows[key] for key in range(len(rows))]

    def lengths(self) -> np.ndarray:
        return np.array([len(text.tokens) for text in self._texts], np.int64)

    def batch(self, members: np.ndarray) -> MaskedBatch:
        rows = [self._texts[number] for number in members.tolist()]
        return MaskedBatch(*(pad_sequence(list(parts), batch_first=True) for parts in zip(*rows, strict=True)))

    def loss_count(self, members: np.ndarray) -> int:
        """Number of predicted tokens."""
        return sum(int(self._texts[number].targets_mask.sum()) for number in members.tolist())

    def tokens(self, members: np.ndarray) -> int:
        return sum(int(self._texts[number].token_mask.sum()) for number in members.tolist())

    def describe(self, members: np.ndarray) -> str:
        unit = "windows" if self.corpus.starts is None else "lines"
        return preview(f"{self.corpus.name}, {unit}", np.sort(members) + 1)


class FixedMaskTask(MaskedLMObjective):
    """Cross-entropy of masked tokens, for batches that are already masked."""

    def loss(self, model: Any, batch: MaskedBatch, carry: None) -> Loss:  # type: ignore[override]
        text = EncoderInput(batch.masked_tokens, batch.token_mask)
        losses = model.loss(text, batch.tokens, batch.targets_mask, self.smoothing)
        return Loss(losses.sum(), batch.targets_mask.sum().clamp(min=1), None, batch.token_mask.sum())
