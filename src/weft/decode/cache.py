"""The neural cache (Grave, Joulin and Usunier 2017): tokens that followed similar hidden states become more probable.

    P(w) = (1 - weight) P_model(w) + weight P_cache(w)
    P_cache(w) ~ sum over the last `size` positions i of [w = w_i] exp(theta h_t . h_i)

h_i is the hidden state that predicts token w_i. While the cache is empty, the model predicts alone.

Shapes: B batch size, T sequence length, C cached positions, D hidden size, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.decode.cache_options import Cache

NO_TOKEN = -1  # the token of a column without an entry
MAX_SIMILARITIES = 1 << 21  # similarities in memory at once: 8 MB
MAX_QUERIES = 512  # positions computed at once; more would compute more similarities outside the band
PROMPT_CHUNK = 512  # tokens of a prompt read at once: the memory of attention is quadratic in this number

# state of the network, hidden states (B, C, D) and tokens (B, C) of the entries, and the last hidden state (B, D), whose token
# is not known yet
State = tuple[Any, Tensor, Tensor, Tensor]


class OutputLayer(Protocol):
    """The layer from hidden states to the vocabulary."""

    weight: Tensor  # (V, D)

    def __call__(self, x: Tensor) -> Tensor:
        """Log-probabilities (..., V) of hidden states (..., D)."""

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each target, (B, T)."""


class HiddenStateModel(Protocol):
    """A neural language model."""

    head: OutputLayer
    vocabulary: str

    @property
    def max_positions(self) -> int | None: ...

    def __call__(self, tokens: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Tokens (B, T) to hidden states (B, T, D), and the state."""

    def bytes_per_row(self, tokens: int, state: Any = None) -> int: ...


def _band(hidden: Tensor, tokens: Tensor, start: int, stop: int, width: int) -> tuple[Tensor, Tensor]:
    """For each position from `start` to `stop`, the similarities with the `width` positions before it and their tokens, both
    (B, positions, width)."""
    low = max(0, start - width)
    padding = width - (start - low)
    keys = F.pad(hidden[:, low : stop - 1], (0, 0, padding, 0))
    key_tokens = F.pad(tokens[:, low : stop - 1], (padding, 0), value=NO_TOKEN)
    products = (hidden[:, start:stop] @ keys.transpose(1, 2)).contiguous()
    batch, rows, columns = products.shape
    # row r of the product needs the columns r to r + width: a diagonal band, which is a view
    band = products.as_strided((batch, rows, width), (rows * columns, columns + 1, 1))
    return band, key_tokens.unfold(1, width, 1)


def _logsumexp_of_last(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """logsumexp over the last `size` columns (..., C), for ascending sizes, (sizes, ...)."""
    edges = [logits.size(-1), *(max(0, logits.size(-1) - size) for size in sizes)]
    total, totals = logits.new_full(logits.shape[:-1], -math.inf), []
    for newer, older in pairwise(edges):
        total = total if older == newer else torch.logaddexp(total, logits[..., older:newer].logsumexp(-1))
        totals.append(total)
    return torch.stack(totals)


def cache_log_probs(hidden: Tensor, tokens: Tensor, first: int, *, thetas: Sequence[float], sizes: Sequence[int]) -> Tensor:
    """log P_cache of the tokens from column `first` on, (thetas, sizes, B, T - first), for ascending sizes; NaN while the cache
    is empty.

    hidden (B, T, D) are the states that predict tokens (B, T). No array has the size of the vocabulary.
    """
    batch, length = tokens.shape
    width = max(1, min(max(sizes), length - 1))
    rows = max(1, min(MAX_QUERIES, MAX_SIMILARITIES // (batch * width)))
    result = hidden.new_empty(len(thetas), len(sizes), batch, length - first, dtype=torch.float32)
    for start in range(first, length, rows):
        stop = min(start + rows, length)
        similarities, cached = _band(hidden, tokens, start, stop, width)
        is_other, is_empty = cached != tokens[:, start:stop, None], cached == NO_TOKEN
        for index, theta in enumerate(thetas):
            logits = (theta * similarities.float()).masked_fill(is_empty, -math.inf)
            matches = _logsumexp_of_last(logits.masked_fill(is_other, -math.inf), sizes)
            result[index, :, :, start - first : stop - first] = matches - _logsumexp_of_last(logits, sizes)
    return result


def interpolate(log_probs: Tensor, cached: Tensor, weight: float) -> Tensor:
    """log((1 - weight) P_model + weight P_cache); the model alone where `cached`, log P_cache, is NaN."""
    log_weight = math.log(weight) if weight else -math.inf
    return torch.where(cached.isnan(), log_probs, torch.logaddexp(log_probs + math.log1p(-weight), cached + log_weight))


class CachedModel:
    """A language model with a cache, which decodes and scores like one without. Each text starts with an empty cache."""

    def __init__(self, network: HiddenStateModel, cache: Cache) -> None:
        self.network, self.cache = network, cache

    @property
    def vocabulary(self) -> str:
        return self.network.vocabulary

    @property
    def max_positions(self) -> int | None:
        return self.network.max_positions

    def bytes_per_row(self, tokens: int, state: State | None = None) -> int:
        entry = 4 * self.network.head.weight.size(1) + 8  # a hidden state and a token
        past = None if state is None else state[0]
        return self.network.bytes_per_row(tokens, past) + 2 * min(tokens, self.cache.size) * entry

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        past, chunks = None if state is None else state[0], list[Tensor]()
        for low in range(0, prompt.size(1), PROMPT_CHUNK):
            mask = None if token_mask is None else token_mask[:, low : low + PROMPT_CHUNK]
            y, past = self.network(prompt[:, low : low + PROMPT_CHUNK], past, mask)
            chunks.append(y)
        hidden = torch.cat(chunks, 1)
        targets = prompt if token_mask is None else prompt.masked_fill(~token_mask, NO_TOKEN)
        lengths = prompt.new_full((len(prompt),), prompt.size(1)) if token_mask is None else token_mask.sum(1)
        last = hidden[torch.arange(len(prompt), device=prompt.device), lengths - 1]
        keys, tokens = self._entries(state, prompt[:, 0], hidden)
        keys, tokens = torch.cat([keys, hidden[:, :-1]], 1), torch.cat([tokens, targets[:, 1:]], 1)
        return self._next((past, *self._newest(keys, tokens), last))

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        y, past = self.network(token[:, None], state[0])
        return self._next((past, *self._newest(*self._entries(state, token, y)), y[:, 0]))

    def loss(self, tokens: Tensor, targets: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Cross-entropy of each target in nats, (B, T), and the state after the last token."""
        y, past = self.network(tokens, None if state is None else state[0])
        keys, key_tokens = self._newest(*self._entries(state, tokens[:, 0], y))
        first, hidden, hidden_tokens = keys.size(1), torch.cat([keys, y], 1), torch.cat([key_tokens, targets], 1)
        cached = cache_log_probs(hidden, hidden_tokens, first, thetas=[self.cache.theta], sizes=[self.cache.size])[0, 0]
        loss = -interpolate(-self.network.head.loss(y, targets), cached, self.cache.weight)
        return loss, (past, *self._newest(hidden[:, :-1], hidden_tokens[:, :-1]), y[:, -1])

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: State | None = None) -> Tensor:
        if tokens.size(1) < 2:  # recurrent layers do not accept empty sequences
            return torch.zeros(tokens.size(0), 0, device=tokens.device)
        loss, _ = self.loss(tokens[:, :-1], tokens[:, 1:], state)
        return -loss if token_mask is None else -loss.masked_fill(~token_mask[:, 1:], 0.0)

    def _entries(self, state: State | None, token: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The entries of `state`, and one more of its last hidden state and `token` (B,), the token after it; none without a
        state. `hidden` (B, T, D) has the type and device of the result."""
        if state is None:
            return hidden[:, :0], token.new_empty(len(token), 0)
        _, keys, tokens, last = state
        return torch.cat([keys, last[:, None]], 1), torch.cat([tokens, token[:, None]], 1)

    def _newest(self, keys: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The newest `size` entries of each row, (B, C, D) and (B, C), empty columns first."""
        order = (tokens != NO_TOKEN).int().argsort(dim=1, stable=True)[:, -self.cache.size :]
        return keys.gather(1, order[..., None].expand(-1, -1, keys.size(2))), tokens.gather(1, order)

    def _next(self, state: State) -> tuple[Tensor, State]:
        """The log-probabilities of the next token (B, V), with the state."""
        _, keys, tokens, last = state
        log_probs = self.network.head(last)
        is_empty = tokens == NO_TOKEN
        logits = (self.cache.theta * torch.einsum("bcd,bd->bc", keys, last).float()).masked_fill(is_empty, -math.inf)
        probs = torch.zeros_like(log_probs).scatter_add_(1, tokens.clamp(min=0), logits.softmax(1).masked_fill(is_empty, 0.0))
        cached = probs.log().masked_fill(is_empty.all(1, keepdim=True), math.nan)
        return interpolate(log_probs, cached, self.cache.weight), state
