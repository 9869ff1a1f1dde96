"""The neural language model: embedding, stack, head. It is trained through `loss` and decoded through `start` and `step`.

Shapes: B rows, T positions, D width, V words.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.config import LanguageModelConfig
from weft.nn.lm_head import LMHead
from weft.nn.recurrent import last_token_state
from weft.nn.stack import Stack
from weft.nn.state import tree_leaves

PIECE = 512  # tokens of a prompt that are read at once: attention weighs each against each


class LanguageModel(nn.Module):
    """P(next token | the tokens so far), for any stack that reads one way."""

    def __init__(
        self, embedding: nn.Embedding, stack: Stack, head: LMHead, *, context_length: int, vocabulary: str, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding, self.stack, self.head, self.dropout = embedding, stack, head, nn.Dropout(dropout)
        self.context_length, self.vocabulary = context_length, vocabulary  # the window: what attention in the stack sees

    @property
    def max_positions(self) -> int | None:
        return self.stack.positions.max_positions

    def muon_parameters(self) -> set[str]:
        """The weights between embedding and head that map vectors to vectors: what Muon is for."""
        return build.muon_parameters(self.stack, "stack")

    @torch.no_grad()
    def bytes_per_row(self, tokens: int, state: Any = None) -> int:
        """The most bytes that one row takes while so many tokens are read: its state, and log-probabilities twice."""
        prompt = self.head.bias.new_zeros(1, min(2, tokens), dtype=torch.long)
        first, second = (sum(part.nbytes for part in tree_leaves(self(read)[1])) for read in (prompt[:, :1], prompt))
        # attention adds a column a token, until at twice the window it forgets half of them
        columns = min(tokens, 2 * self.context_length)
        return first + (columns - 1) * (second - first) + 2 * self.head.bias.nbytes

    def forward(self, tokens: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """(B, T) -> what the head reads, (B, T, D), and the state after each row's last real token."""
        y, state = self.stack(self.dropout(self.embedding(tokens)), state, token_mask)
        return y, state

    def loss(self, tokens: Tensor, targets: Tensor, state: Any = None, smoothing: float = 0.0) -> tuple[Tensor, Any]:
        """Nats of every target, (B, T), and the state; padding on the right needs no mask here: it lies in the future."""
        y, state = self(tokens, state)
        return self.head.loss(y, targets, smoothing), state

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: Any = None) -> tuple[Tensor, Any]:
        found: Tensor | None = None
        for low in range(0, prompt.size(1), PIECE):
            real = None if token_mask is None else token_mask[:, low : low + PIECE]
            y, state = self(prompt[:, low : low + PIECE], state, real)
            found = last_token_state(y, real, found)
        return self.head(found), state

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self(token[:, None], state)
        return self.head(y[:, 0]), state

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: Any = None) -> Tensor:
        if tokens.size(1) < 2:  # no recurrent cell reads nothing
            return torch.zeros(tokens.size(0), 0, device=tokens.device)
        nats, _ = self.loss(tokens[:, :-1], tokens[:, 1:], state)
        return -nats if token_mask is None else -nats.masked_fill(~token_mask[:, 1:], 0.0)


def language_model(config: LanguageModelConfig, *, vocab_size: int, context_length: int, vocabulary: str) -> LanguageModel:
    """The model of a filled table, freshly initialised from torch's default generator."""
    embedding = nn.Embedding(vocab_size, config.hidden_size)
    stack = build.stack(config, context_length=context_length)
    cap = None if config.logit_softcap == "none" else float(config.logit_softcap)
    head = LMHead(config.hidden_size, vocab_size, logit_softcap=cap, weight=embedding.weight if config.tie_embeddings else None)
    if config.traits.small_init:
        build.init_gpt2(stack)
        # as loud as sinusoids are, or as quiet as learned positions start; tied, it is the head as well, where loud ones
        # would have each token predict itself
        nn.init.normal_(embedding.weight, std=0.02 if config.tie_embeddings or config.position_encoding == "learned" else 1.0)
    elif config.tie_embeddings:
        nn.init.normal_(embedding.weight, std=config.hidden_size**-0.5)
    if config.skip_connection == "residual":
        build.scale_residual_projections(stack, 0.0 if config.zero_init else (2 * config.num_layers) ** -0.5)
    if config.zero_init:
        nn.init.zeros_(head.weight)
    drop = config.embedding_dropout or 0.0
    return LanguageModel(embedding, stack, head, context_length=context_length, vocabulary=vocabulary, dropout=drop)
