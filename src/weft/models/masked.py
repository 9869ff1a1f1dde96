"""Masked language models (Devlin et al. 2019): an encoder that fills gaps, by what stands on both sides of them.

Shapes: B rows, S positions, N chosen positions, D width, V words, the mask among them as the last.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from weft.models import build
from weft.models.encoder import Text, TextEncoder, text_encoder
from weft.models.encoder_tables import MaskedTable
from weft.nn.attention import ACTIVATIONS
from weft.nn.heads import TokenHead


class MaskedModel(nn.Module):
    """P(token | the tokens around it), where the last word of the embedding stands for what is hidden."""

    def __init__(self, encoder: TextEncoder, transform: nn.Module, head: TokenHead) -> None:
        super().__init__()
        self.encoder, self.transform, self.head = encoder, transform, head

    @property
    def longest(self) -> int | None:
        return self.encoder.longest

    @property
    def mask(self) -> int:
        return len(self.head.bias) - 1

    def matrices(self) -> set[str]:
        return build.matrices(self.encoder.stack, "encoder.stack")

    def forward(self, text: Text) -> Tensor:
        """What the head reads, (B, S, D)."""
        y: Tensor = self.encoder(text)[0]
        return y

    def log_probs(self, y: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        found: Tensor = self.head(self.transform(y))
        return found

    def loss(self, text: Text, targets: Tensor, chosen: Tensor, smoothing: float = 0.0) -> Tensor:
        """Nats of the targets (B, S) at the chosen (B, S) positions, row by row: (N,)."""
        y = self.transform(self(text)[chosen])  # no other position needs scores, and a vocabulary is wide
        return self.head.loss(y[:, None], targets[chosen][:, None], smoothing)[:, 0]


def masked_model(table: MaskedTable, *, words: int, longest: int) -> MaskedModel:
    """The model of a filled table, freshly initialised from torch's default generator; `words` are the tokenizer's."""
    encoder = text_encoder(table, words=words + 1, longest=longest, segments=bool(table.segments))
    front: Any = encoder.front
    if table.tied:  # loud vectors would have each token predict itself
        nn.init.normal_(front.embedding.weight, std=0.02 if table.traits.small_init else table.width**-0.5)
    transform: nn.Module = nn.Identity()
    if table.transform:
        norm = build.norm(table.norm if table.norm != "none" else "layer", table.width, eps=table.norm_eps)
        dense = nn.Linear(table.width, table.width)
        nn.init.normal_(dense.weight, std=0.02)
        nn.init.zeros_(dense.bias)
        transform = nn.Sequential(dense, ACTIVATIONS[table.activation or "gelu"](), norm)
    head = TokenHead(table.width, words + 1, weight=front.embedding.weight if table.tied else None)
    return MaskedModel(encoder, transform, head)
