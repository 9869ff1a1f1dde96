"""Masked language models (Devlin et al. 2019): an encoder that predicts masked tokens from both sides.

Shapes: B batch size, S sequence length, N masked positions, D hidden size, V vocabulary size including [MASK], the last token.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, text_encoder
from weft.models.encoder_config import MaskedLMConfig
from weft.nn.attention import ACTIVATIONS
from weft.nn.lm_head import LMHead


class MaskedLanguageModel(nn.Module):
    """P(token | the tokens around it). The last row of the embedding is [MASK]."""

    def __init__(self, encoder: TextEncoder, transform: nn.Module, head: LMHead) -> None:
        super().__init__()
        self.encoder, self.transform, self.head = encoder, transform, head

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    @property
    def mask_id(self) -> int:
        return len(self.head.bias) - 1

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, text: EncoderInput) -> Tensor:
        """Hidden states (B, S, D)."""
        y: Tensor = self.encoder(text)[0]
        return y

    def log_probs(self, y: Tensor) -> Tensor:
        """Hidden states (..., D) to log-probabilities (..., V)."""
        log_probs: Tensor = self.head(self.transform(y))
        return log_probs

    def loss(self, text: EncoderInput, targets: Tensor, masked: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy in nats of the targets (B, S) at the masked positions (B, S), row by row: (N,)."""
        y = self.transform(self(text)[masked])  # logits are large: compute them at masked positions only
        return self.head.loss(y[:, None], targets[masked][:, None], label_smoothing)[:, 0]


def masked_language_model(config: MaskedLMConfig, *, vocab_size: int, max_positions: int) -> MaskedLanguageModel:
    """The model of a resolved configuration, initialized with torch's default random generator.

    `vocab_size` is the size of the tokenizer's vocabulary, without [MASK].
    """
    encoder = text_encoder(
        config, vocab_size=vocab_size + 1, max_positions=max_positions, segments=bool(config.segment_embeddings)
    )
    embedder: Any = encoder.embedder
    if config.tie_embeddings:  # small, because large ones would make each token predict itself
        nn.init.normal_(embedder.embedding.weight, std=0.02 if config.traits.small_init else config.hidden_size**-0.5)
    transform: nn.Module = nn.Identity()
    if config.head_transform:
        norm = build.norm(config.norm if config.norm != "none" else "layernorm", config.hidden_size, eps=config.norm_eps)
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        nn.init.normal_(dense.weight, std=0.02)
        nn.init.zeros_(dense.bias)
        transform = nn.Sequential(dense, ACTIVATIONS[config.activation or "gelu"](), norm)
    head = LMHead(config.hidden_size, vocab_size + 1, weight=embedder.embedding.weight if config.tie_embeddings else None)
    return MaskedLanguageModel(encoder, transform, head)
