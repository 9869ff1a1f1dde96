"""Classifiers: an encoder, one vector for the whole text, a score for each label.

Shapes: B rows, S positions, D width, K labels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, text_encoder
from weft.models.encoder_config import ClassifierConfig


class LabelHead(nn.Module):
    """Scores of labels. Its temperature, 1 until validation data says better, makes probabilities mean what they say
    (Guo et al. 2017); it is no weight: training does not see it."""

    temperature: Tensor

    def __init__(self, dim: int, labels: int, *, multilabel: bool) -> None:
        super().__init__()
        self.labels, self.multilabel = (
            labels,
            multilabel,
        )  # a text may have several labels, or none: each is a question of its own
        self.scores = nn.Linear(dim, labels)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, K), neither normalised nor tempered."""
        scores: Tensor = self.scores(x)
        return scores.float()

    def log_probs(self, scores: Tensor) -> Tensor:
        """(B, K): of labels that exclude each other; or of each that it is there."""
        tempered = scores / self.temperature
        return F.logsigmoid(tempered) if self.multilabel else tempered.log_softmax(-1)

    def loss(self, scores: Tensor, labels: Tensor, *, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Nats of each row, (B,); labels (B, 1), or (B, K) of 0 and 1 where there may be several. `weights` (K,) say how much
        each label counts."""
        if weights is not None:
            weights = weights.to(scores.dtype)  # a model may be checked in float64
        if not self.multilabel:
            return F.cross_entropy(scores, labels[:, 0], weights, reduction="none", label_smoothing=smoothing)
        wanted = labels.to(scores.dtype) * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(scores, wanted, weights, reduction="none").sum(1)


class Classifier(nn.Module):
    """P(label | text)."""

    def __init__(self, encoder: TextEncoder, pooling: nn.Module, head: LabelHead, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.pooling, self.head, self.dropout = encoder, pooling, head, nn.Dropout(dropout)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, text: EncoderInput) -> Tensor:
        """(B, S) -> scores (B, K), neither normalised nor tempered."""
        scores: Tensor = self.head(self.dropout(self.embed(text)))
        return scores

    def embed(self, text: EncoderInput) -> Tensor:
        """(B, D): a vector for each text."""
        pooled: Tensor = self.pooling(*self.encoder(text))
        return pooled


def classifier(
    config: ClassifierConfig, *, vocab_size: int, labels: int, max_positions: int, segments: bool, multilabel: bool
) -> Classifier:
    """The model of a filled table, freshly initialised from torch's default generator."""
    encoder = text_encoder(config, vocab_size=vocab_size, max_positions=max_positions, segments=segments)
    head = LabelHead(config.hidden_size, labels, multilabel=multilabel)
    return Classifier(encoder, build.build_pooling(config.pooling, config), head, dropout=config.dropout)
