"""Masked language models (Devlin et al. 2019): an encoder that fills gaps, by what stands on both sides of them.

Shapes: B rows, S positions, N chosen positions, D width, V words, the mask among them as the last.
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
    """P(token | the tokens around it), where the last word of the embedding stands for what is hidden."""

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
        """What the head reads, (B, S, D)."""
        y: Tensor = self.encoder(text)[0]
        return y

    def log_probs(self, y: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        found: Tensor = self.head(self.transform(y))
        return found

    def loss(self, text: EncoderInput, targets: Tensor, chosen: Tensor, smoothing: float = 0.0) -> Tensor:
        """Nats of the targets (B, S) at the chosen (B, S) positions, row by row: (N,)."""
        y = self.transform(self(text)[chosen])  # no other position needs scores, and a vocabulary is wide
        return self.head.loss(y[:, None], targets[chosen][:, None], smoothing)[:, 0]


def masked_language_model(config: MaskedLMConfig, *, vocab_size: int, max_positions: int) -> MaskedLanguageModel:
    """The model of a filled table, freshly initialised from torch's default generator; `words` are the tokenizer's."""
    encoder = text_encoder(
        config, vocab_size=vocab_size + 1, max_positions=max_positions, segments=bool(config.segment_embeddings)
    )
    front: Any = encoder.embedder
    if config.tie_embeddings:  # loud vectors would have each token predict itself
        nn.init.normal_(front.embedding.weight, std=0.02 if config.traits.small_init else config.hidden_size**-0.5)
    transform: nn.Module = nn.Identity()
    if config.head_transform:
        norm = build.norm(config.norm if config.norm != "none" else "layernorm", config.hidden_size, eps=config.norm_eps)
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        nn.init.normal_(dense.weight, std=0.02)
        nn.init.zeros_(dense.bias)
        transform = nn.Sequential(dense, ACTIVATIONS[config.activation or "gelu"](), norm)
    head = LMHead(config.hidden_size, vocab_size + 1, weight=front.embedding.weight if config.tie_embeddings else None)
    return MaskedLanguageModel(encoder, transform, head)
