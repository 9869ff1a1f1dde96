"""Texts with gaps that are made once: what two networks make of them differs by the networks alone.

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
from weft.tasks.masked_lm.objective import SEED, MaskedTask, Masking, mask_tokens, texts
from weft.training.objective import Loss

BATCH = 4096  # positions of texts whose gaps are drawn at once


class GapBatch(NamedTuple):
    tokens: Tensor  # int64 (B, S): <s>, tokens, </s>; padded with 0
    token_mask: Tensor  # bool (B, S), False on padding
    shown: Tensor  # int64 (B, S), with gaps
    targets_mask: Tensor  # bool (B, S), what is to be predicted


@dataclass(frozen=True)
class GapExamples(Examples[GapBatch]):
    """Lines, or windows of running text, with the same gaps every time. They are drawn when they are first asked for: training
    draws others in each step."""

    corpus: Corpus
    masking: Callable[[], Masking]
    window: int

    @cached_property
    def _texts(self) -> list[GapBatch]:
        """One row each, without padding but that of windows, which are equally wide."""
        how, generator = self.masking(), torch.Generator().manual_seed(SEED)
        lengths = None if self.corpus.starts is None else np.diff(self.corpus.starts) + 1
        found: dict[int, GapBatch] = {}
        for read in texts(self.corpus, window=self.window, batch_tokens=BATCH):
            text = read.text
            whole = GapBatch(text.tokens, text.token_mask, *mask_tokens(text.tokens, text.token_mask, how, generator))
            for row, key in enumerate(read.keys.tolist()):
                size = text.tokens.size(1) if lengths is None else int(lengths[key])
                found[key] = GapBatch(*(part[row, :size] for part in whole))
        return [found[key] for key in range(len(found))]

    def lengths(self) -> np.ndarray:
        return np.array([len(text.tokens) for text in self._texts], np.int64)

    def batch(self, members: np.ndarray) -> GapBatch:
        rows = [self._texts[at] for at in members.tolist()]
        return GapBatch(*(pad_sequence(list(parts), batch_first=True) for parts in zip(*rows, strict=True)))

    def loss_count(self, members: np.ndarray) -> int:
        """Tokens that are predicted."""
        return sum(int(self._texts[at].targets_mask.sum()) for at in members.tolist())

    def tokens(self, members: np.ndarray) -> int:
        return sum(int(self._texts[at].token_mask.sum()) for at in members.tolist())

    def describe(self, members: np.ndarray) -> str:
        what = "windows" if self.corpus.starts is None else "lines"
        return preview(f"{self.corpus.name}, {what}", np.sort(members) + 1)


class FixedGaps(MaskedTask):
    """Nats of hidden tokens, where it is given which."""

    def loss(self, model: Any, batch: GapBatch, carry: None) -> Loss:  # type: ignore[override]
        nats = model.loss(EncoderInput(batch.shown, batch.token_mask), batch.tokens, batch.targets_mask, self.smoothing)
        return Loss(nats.sum(), batch.targets_mask.sum().clamp(min=1), None, batch.token_mask.sum())
