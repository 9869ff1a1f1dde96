"""Toy incremental models and tokenizers for the tests of decoding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import nn


class ToyModel:
    """An incremental model defined by `initial_state(B)`, `update(token, state)` and `log_probs(state)`."""

    def __init__(self, vocab_size: int, *, max_positions: int | None = None, vocabulary: str = "ab12cd34" * 8) -> None:
        self.vocab_size, self.max_positions, self.vocabulary = vocab_size, max_positions, vocabulary
        self.steps_taken: list[int] = []  # batch size of each step

    def bytes_per_row(self, tokens, state=None):
        return 8 * self.vocab_size + 8 * 12

    def start(self, prompt, token_mask=None, state=None):
        state = self.initial_state(prompt.size(0)) if state is None else state
        for position in range(prompt.size(1)):
            new = self.update(prompt[:, position], state)
            is_token = torch.ones_like(prompt[:, position], dtype=torch.bool) if token_mask is None else token_mask[:, position]
            state = tuple(torch.where(is_token.unsqueeze(1), n, o) for n, o in zip(new, state, strict=True))
        return self.log_probs(state), state

    def step(self, token, state):
        self.steps_taken.append(token.size(0))
        state = self.update(token, state)
        return self.log_probs(state), state

    def score(self, tokens, token_mask=None, state=None):
        scores = [torch.zeros(tokens.size(0), 0)]
        for position in range(tokens.size(1) - 1):
            log_probs, state = (
                self.start(tokens[:, :1], None, state) if position == 0 else self.step(tokens[:, position], state)
            )
            scores.append(log_probs.gather(1, tokens[:, position + 1 : position + 2]))
        scores = torch.cat(scores, 1)
        return scores if token_mask is None else scores.masked_fill(~token_mask[:, 1:], 0.0)


class Bigram(ToyModel):
    """A table of log-probabilities (V, V), random by default. Its state is the last token."""

    def __init__(self, vocab_size: int, *, seed: int = 0, table: torch.Tensor | None = None, **options) -> None:
        super().__init__(vocab_size, **options)
        logits = torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)) * 1.5
        self.table = logits.log_softmax(1) if table is None else table

    def initial_state(self, rows):
        return (torch.zeros(rows, 1, dtype=torch.long),)

    def update(self, token, state):
        return (token.unsqueeze(1),)

    def log_probs(self, state):
        return self.table[state[0][:, 0]]


class Hashed(ToyModel):
    """A different distribution for every prefix. Its state is a hash of the prefix."""

    def initial_state(self, rows):
        return (torch.full((rows, 1), 17, dtype=torch.long),)

    def update(self, token, state):
        return ((state[0] * 31 + token.unsqueeze(1) * 7919 + 11) % 1_000_003,)

    def log_probs(self, state):
        logits = 2.5 * torch.sin(state[0].double() * (1 + torch.arange(self.vocab_size).double() * 0.618))
        return logits.log_softmax(1).float()


class TinyGRU(ToyModel):
    """A GRU of size 12 with random weights."""

    def __init__(self, vocab_size: int, *, seed: int = 0, **options) -> None:
        super().__init__(vocab_size, **options)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding, self.cell, self.head = nn.Embedding(vocab_size, 12), nn.GRUCell(12, 12), nn.Linear(12, vocab_size)
        with torch.no_grad():
            for weight in (*self.cell.parameters(), self.head.weight):
                weight.mul_(3)

    def initial_state(self, rows):
        return (torch.zeros(rows, 12),)

    def update(self, token, state):
        return (self.cell(self.embedding(token), state[0]),)

    def log_probs(self, state):
        return self.head(state[0]).log_softmax(1)


TOY_MODELS = {"bigram": Bigram, "hashed": Hashed, "gru": TinyGRU}


class ToyTokenizer:
    """Base class with the special tokens."""

    unk_id, bos_id, eos_id = 0, 1, 2

    def encode(self, text):
        return np.array(self.ids(text), dtype=np.int64)


class ByteTokenizer(ToyTokenizer):
    """Token 3 + b is the byte b. Invalid UTF-8 decodes to U+FFFD, as in every byte-level tokenizer."""

    vocab_size = 259

    def ids(self, text):
        return [3 + byte for byte in text.encode()]

    def decode(self, ids):
        return bytes(token - 3 for token in ids if token > 2).decode(errors="replace")


class StringTokenizer(ToyTokenizer):
    """Token 3 + i is the i-th string; `between` separates tokens (a space if they are words)."""

    def __init__(self, strings, between=""):
        self.strings, self.between, self.vocab_size = list(strings), between, 3 + len(strings)

    def ids(self, text):
        pieces = text.split() if self.between else list(text)
        return [3 + self.strings.index(piece) if piece in self.strings else self.unk_id for piece in pieces]

    def decode(self, ids):
        return self.between.join(self.strings[token - 3] for token in ids if token > 2)


def chain_model(chain: list[int], vocab_size: int) -> Bigram:
    """A model that predicts the tokens of `chain` in turn, with -inf for all others, as maximum likelihood would."""
    table = torch.full((vocab_size, vocab_size), -math.inf)
    for before, after in itertools.pairwise(chain):
        table[before, after] = 0.0
    return Bigram(vocab_size, table=table)
