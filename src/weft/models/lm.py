"""Neural language models: embedding, stack, output layer.

`loss` turns tokens into a loss, for training; `start`, `step` and `score` are the interface of decoding, which
`weft.decode.incremental.IncrementalModel` describes.

Shapes: B batch size, T sequence length, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.config import LanguageModelConfig
from weft.nn.decode_step import StackStep, Step, guarded
from weft.nn.dropout import ActivationPenalty, IntegerDropout, VariationalDropout, WordTypeDropout
from weft.nn.lm_head import LMHead
from weft.nn.recurrent import last_token_state
from weft.nn.stack import Stack
from weft.nn.state import tree_leaves

PROMPT_CHUNK = 512  # tokens of a prompt read at once: the memory of attention is quadratic in this number


class LanguageModelDropout(NamedTuple):
    """Dropout outside the stack."""

    word_type: WordTypeDropout
    embedding: nn.Module
    output: nn.Module  # on the outputs of a stack without dropout on its last layer


class LanguageModel(nn.Module):
    """P(w_t | w_1, ..., w_{t-1}), with any causal stack."""

    steps_from_nothing = True

    def __init__(
        self,
        embedding: nn.Embedding,
        stack: Stack,
        head: LMHead,
        *,
        context_length: int,
        vocabulary: str,
        dropout: LanguageModelDropout,
        penalty: ActivationPenalty | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.stack, self.head, self.penalty = embedding, stack, head, penalty
        self.word_type_dropout, self.dropout, self.output_dropout = dropout
        self.context_length = context_length  # maximum number of tokens that attention sees
        self.vocabulary = vocabulary  # SHA-256 of the tokenizer

    def forward(self, tokens: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Tokens (B, T) to hidden states (B, T, D), and the state after each row's last token."""
        h, state = self._read(tokens, state, token_mask)
        return self.output_dropout(h), state

    def _read(self, tokens: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """The outputs of the stack (B, T, D), before the dropout on them, and the state."""
        x = self.word_type_dropout(self.embedding(tokens), tokens)
        h, state = self.stack(self.dropout(x), state, token_mask)
        return h, state

    def loss(self, tokens: Tensor, targets: Tensor, state: Any = None, label_smoothing: float = 0.0) -> tuple[Tensor, Any]:
        """Cross-entropy of each target in nats, (B, T), and the state. Right padding needs no mask: it is in the future."""
        y, state = self(tokens, state)
        return self.head.loss(y, targets, label_smoothing), state

    def penalized(
        self, tokens: Tensor, state: Any = None, target_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Any]:
        """Hidden states (B, T, D), the penalty on the activations at each position, (B, T), and the state. The penalty is None
        in eval mode. `target_mask` (B, T) is False where there is nothing to predict."""
        token_mask = self.stack.padding_mask(target_mask)
        if self.penalty is None or not self.training:
            y, state = self(tokens, state, token_mask)
            return y, None, state
        h, state = self._read(tokens, state, token_mask)
        y = self.output_dropout(h)
        return y, self.penalty(h, y), state

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: Any = None) -> tuple[Tensor, Any]:
        last: Tensor | None = None
        for low in range(0, prompt.size(1), PROMPT_CHUNK):
            chunk_mask = None if token_mask is None else token_mask[:, low : low + PROMPT_CHUNK]
            y, state = self(prompt[:, low : low + PROMPT_CHUNK], state, chunk_mask)
            last = last_token_state(y, chunk_mask, last)
        return self.head(last), state

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self(token[:, None], state)
        return self.head(y[:, 0]), state

    def stepper(self) -> Step[Any]:
        """`step` without the calls of modules; see `weft.nn.decode_step`."""
        weight, read, head = self.embedding.weight, StackStep(self.stack), self.head.lean()

        def step(token: Tensor, state: Any) -> tuple[Tensor, Any]:
            y, state = read(weight.index_select(0, token), state)
            return head(y), state

        return guarded(self, step, self.step)

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: Any = None) -> Tensor:
        if tokens.size(1) < 2:  # recurrent layers do not accept empty sequences
            return torch.zeros(tokens.size(0), 0, device=tokens.device)
        loss, _ = self.loss(tokens[:, :-1], tokens[:, 1:], state)
        return -loss if token_mask is None else -loss.masked_fill(~token_mask[:, 1:], 0.0)

    @property
    def max_positions(self) -> int | None:
        return self.stack.positions.max_positions

    def muon_parameters(self) -> set[str]:
        """Names of the weight matrices between embedding and output layer, which Muon optimizes."""
        return build.muon_parameters(self.stack, "stack")

    @torch.no_grad()
    def bytes_per_row(self, tokens: int, state: Any = None) -> int:
        """Peak bytes per row while reading this many tokens: its state, and two copies of the log-probabilities."""
        prompt = self.head.bias.new_zeros(1, min(2, tokens), dtype=torch.long)
        states = self(prompt[:, :1])[1], self(prompt)[1]
        after_one, after_two = (sum(leaf.nbytes for leaf in tree_leaves(part)) for part in states)
        # the key-value cache grows by one column per token and is halved at twice the context length
        columns = min(tokens, 2 * self.context_length)
        return after_one + (columns - 1) * (after_two - after_one) + 2 * self.head.bias.nbytes


def language_model(config: LanguageModelConfig, *, vocab_size: int, context_length: int, vocabulary: str) -> LanguageModel:
    """The model of a resolved configuration, initialized with torch's default random generator."""
    embedding = nn.Embedding(vocab_size, config.hidden_size)
    dropout_type = VariationalDropout if config.variational_dropout else IntegerDropout
    stack = build.stack(
        config,
        context_length=context_length,
        dropout_on_top=not config.penalizes_activations,
        dropout_type=dropout_type,
    )
    weight = embedding.weight if config.tie_embeddings else None
    head = LMHead(
        config.hidden_size,
        vocab_size,
        logit_softcap=config.logit_softcap or None,
        weight=weight,
        bias=config.head_bias,
    )
    if config.traits.small_init:
        build.init_gpt2(stack)
        # the scale of the position encoding: 1 for sinusoids, 0.02 for learned positions. Tied embeddings are small, because
        # large ones would make each token predict itself
        nn.init.normal_(embedding.weight, std=0.02 if config.tie_embeddings or config.position_encoding == "learned" else 1.0)
    elif config.tie_embeddings:
        nn.init.normal_(embedding.weight, std=config.hidden_size**-0.5)
    if config.skip_connection == "residual" and not config.is_post_norm:  # GPT-2 has two residual projections per layer
        build.scale_residual_projections(stack, 0.0 if config.zero_init else (2 * config.num_layers) ** -0.5)
    if config.zero_init:
        nn.init.zeros_(head.weight)
    dropout = LanguageModelDropout(
        WordTypeDropout(vocab_size, config.word_type_dropout),
        dropout_type(config.embedding_dropout or 0.0),
        dropout_type(config.dropout if config.penalizes_activations else 0.0),
    )
    penalty = ActivationPenalty(activation=config.activation_regularization, temporal=config.temporal_activation_regularization)
    return LanguageModel(
        embedding,
        stack,
        head,
        context_length=context_length,
        vocabulary=vocabulary,
        dropout=dropout,
        penalty=penalty if config.penalizes_activations else None,
    )
