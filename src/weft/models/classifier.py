"""Text classifiers: encoder, pooling, linear layer.

Shapes: B batch size, S sequence length, D hidden size, K labels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, text_encoder
from weft.models.encoder_config import ClassifierConfig
from weft.nn.dropout import IntegerDropout


class LabelHead(nn.Module):
    """Linear layer to the labels: a softmax over exclusive labels, or a sigmoid per label (multilabel).

    The temperature calibrates probabilities (Guo et al. 2017). It is fitted on validation data and not trained: the loss
    does not use it.
    """

    temperature: Tensor

    def __init__(self, dim: int, num_labels: int, *, multilabel: bool, temperature: float = 1.0) -> None:
        super().__init__()
        self.num_labels, self.multilabel = num_labels, multilabel
        self.scores = nn.Linear(dim, num_labels)
        self.register_buffer("temperature", torch.tensor(temperature))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) to logits (B, K), before the temperature."""
        logits: Tensor = self.scores(x)
        return logits.float()

    def log_probs(self, logits: Tensor) -> Tensor:
        """Calibrated log-probabilities (B, K); with `multilabel`, of each label independently."""
        scaled = logits / self.temperature
        return F.logsigmoid(scaled) if self.multilabel else scaled.log_softmax(-1)

    def distributions(self, logits: Tensor) -> Tensor:
        """Log-probabilities (B, K), before the temperature; with `multilabel` (B, K, 2), with and without each label."""
        if self.multilabel:
            return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], dim=-1)
        return logits.log_softmax(-1)

    def loss(self, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of each text in nats, (B,). `labels` are label IDs (B, 1), or with `multilabel` 0 and 1 for each label,
        (B, K); `weights` are class weights (K,)."""
        if weights is not None:
            weights = weights.to(logits.dtype)  # gradient checks run in float64
        if not self.multilabel:
            return F.cross_entropy(logits, labels[:, 0], weights, reduction="none", label_smoothing=label_smoothing)
        targets = labels.to(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
        return F.binary_cross_entropy_with_logits(logits, targets, weights, reduction="none").sum(1)


class Classifier(nn.Module):
    """P(label | text)."""

    def __init__(self, encoder: TextEncoder, pooling: nn.Module, head: LabelHead, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.pooling, self.head, self.dropout = encoder, pooling, head, IntegerDropout(dropout)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, text: EncoderInput) -> Tensor:
        """Logits (B, K), before the temperature."""
        logits: Tensor = self.head(self.dropout(self.embed(text)))
        return logits

    def embed(self, text: EncoderInput) -> Tensor:
        """One vector per text, (B, D)."""
        pooled: Tensor = self.pooling(*self.encoder(text))
        return pooled


def classifier(
    config: ClassifierConfig, *, vocab_size: int, num_labels: int, max_positions: int, segments: bool, multilabel: bool
) -> Classifier:
    """The model of a resolved configuration, initialized with torch's default random generator."""
    encoder = text_encoder(config, vocab_size=vocab_size, max_positions=max_positions, segments=segments)
    head = LabelHead(config.hidden_size, num_labels, multilabel=multilabel, temperature=config.temperature or 1.0)
    return Classifier(encoder, build.build_pooling(config.pooling, config), head, dropout=config.dropout)
