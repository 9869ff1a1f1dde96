"""Small incremental models and tokenizers for the tests of decoding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import nn


class Toy:
    """An incremental model made of `first(B)`, `read(token, state)` and `say(state)`, one position at a time."""

    def __init__(self, words: int, *, longest: int | None = None, vocabulary: str = "ab12cd34" * 8) -> None:
        self.words, self.max_positions, self.vocabulary = words, longest, vocabulary
        self.steps_taken: list[int] = []  # rows of each step

    def bytes_per_row(self, tokens, state=None):
        return 8 * self.words + 8 * 12

    def start(self, prompt, token_mask=None, state=None):
        state = self.first(prompt.size(0)) if state is None else state
        for position in range(prompt.size(1)):
            new = self.read(prompt[:, position], state)
            is_token = torch.ones_like(prompt[:, position], dtype=torch.bool) if token_mask is None else token_mask[:, position]
            state = tuple(torch.where(is_token.unsqueeze(1), n, o) for n, o in zip(new, state, strict=True))
        return self.say(state), state

    def step(self, token, state):
        self.steps_taken.append(token.size(0))
        state = self.read(token, state)
        return self.say(state), state

    def score(self, tokens, token_mask=None, state=None):
        scores = [torch.zeros(tokens.size(0), 0)]
        for position in range(tokens.size(1) - 1):
            log_probs, state = (
                self.start(tokens[:, :1], None, state) if position == 0 else self.step(tokens[:, position], state)
            )
            scores.append(log_probs.gather(1, tokens[:, position + 1 : position + 2]))
        scores = torch.cat(scores, 1)
        return scores if token_mask is None else scores.masked_fill(~token_mask[:, 1:], 0.0)


class Bigram(Toy):
    """A table of log-probabilities (V, V), random by default. Its state is the last token."""

    def __init__(self, words: int, *, seed: int = 0, table: torch.Tensor | None = None, **more) -> None:
        super().__init__(words, **more)
        logits = torch.randn(words, words, generator=torch.Generator().manual_seed(seed)) * 1.5
        self.table = logits.log_softmax(1) if table is None else table

    def first(self, rows):
        return (torch.zeros(rows, 1, dtype=torch.long),)

    def read(self, token, state):
        return (token.unsqueeze(1),)

    def say(self, state):
        return self.table[state[0][:, 0]]


class Hashed(Toy):
    """A different distribution for every prefix. Its state is a hash of the prefix."""

    def first(self, rows):
        return (torch.full((rows, 1), 17, dtype=torch.long),)

    def read(self, token, state):
        return ((state[0] * 31 + token.unsqueeze(1) * 7919 + 11) % 1_000_003,)

    def say(self, state):
        logits = 2.5 * torch.sin(state[0].double() * (1 + torch.arange(self.words).double() * 0.618))
        return logits.log_softmax(1).float()


class TinyGRU(Toy):
    """A GRU of size 12 with random weights."""

    def __init__(self, words: int, *, seed: int = 0, **more) -> None:
        super().__init__(words, **more)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding, self.cell, self.head = nn.Embedding(words, 12), nn.GRUCell(12, 12), nn.Linear(12, words)
        with torch.no_grad():
            for weight in (*self.cell.parameters(), self.head.weight):
                weight.mul_(3)

    def first(self, rows):
        return (torch.zeros(rows, 12),)

    def read(self, token, state):
        return (self.cell(self.embedding(token), state[0]),)

    def say(self, state):
        return self.head(state[0]).log_softmax(1)


TOYS = {"bigram": Bigram, "hashed": Hashed, "gru": TinyGRU}


class Spelled:
    """The special tokens that every tokenizer has."""

    unk_id, bos_id, eos_id = 0, 1, 2

    def encode(self, text):
        return np.array(self.ids(text), dtype=np.int64)


class Bytes(Spelled):
    """Token 3 + b is the byte b. Invalid UTF-8 decodes to U+FFFD, as in every byte-level tokenizer."""

    vocab_size = 259

    def ids(self, text):
        return [3 + byte for byte in text.encode()]

    def decode(self, ids):
        return bytes(token - 3 for token in ids if token > 2).decode(errors="replace")


class Strings(Spelled):
    """Token 3 + i is the i-th string; `between` separates tokens (a space if they are words)."""

    def __init__(self, strings, between=""):
        self.strings, self.between, self.vocab_size = list(strings), between, 3 + len(strings)

    def ids(self, text):
        pieces = text.split() if self.between else list(text)
        return [3 + self.strings.index(piece) if piece in self.strings else self.unk_id for piece in pieces]

    def decode(self, ids):
        return self.between.join(self.strings[token - 3] for token in ids if token > 2)


def follow(chain: list[int], words: int) -> Bigram:
    """A model that predicts the tokens of `chain` in turn, with -inf for all others, as maximum likelihood would."""
    table = torch.full((words, words), -math.inf)
    for before, after in itertools.pairwise(chain):
        table[before, after] = 0.0
    return Bigram(words, table=table)
