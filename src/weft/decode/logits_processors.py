"""Which token comes next: filters over log-probabilities, and the draw.

A filter is `adjust(log_probs, tokens) -> log_probs`. `tokens` is all that stands before, prompt included, aligned on
the right: the last column is the newest token, and -1 fills a shorter row on the left. No filter needs normalised rows,
none normalises, and a row may become -inf throughout.

Shapes: B rows, T positions, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
Noise = Callable[[int], float]  # of one row: how many tokens it has written -> a number in [0, 1)

NO_TOKEN = -1  # no token: fills short rows, and marks a row that has ended
NOT_A_NUMBER = "generate: the model gives NaN for probabilities; its weights are damaged or have diverged"
BLOCK = 256  # positions whose random numbers are drawn at once
ROUNDING = 1e-6  # of sums of float32 probabilities
REPETITION_WINDOW = 64  # tokens that the repetition penalty looks back on: all of a long text would ban every frequent word


def right_aligned(prompt: Tensor, token_mask: Tensor | None) -> Tensor:
    """Right-padded (B, T) tokens as filters see them: padding on the left, as -1."""
    if token_mask is None:
        return prompt
    column = torch.arange(prompt.size(1), device=prompt.device) - (~token_mask).sum(1, keepdim=True)
    return prompt.gather(1, column.clamp(min=0)).masked_fill(column < 0, NO_TOKEN)


def compose(processors: Sequence[LogitsProcessor]) -> LogitsProcessor:
    """All of them, in this order."""

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        for one in processors:
            log_probs = one(log_probs, tokens)
        return log_probs

    return processor


def ban_tokens(banned: Sequence[int]) -> LogitsProcessor:
    """Never these tokens."""

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        log_probs = log_probs.clone()
        for token in banned:  # a few special tokens: filling slices asks no device for anything
            log_probs[:, token] = -math.inf
        return log_probs

    return processor


def temperature(value: float) -> LogitsProcessor:
    """Probabilities to the power 1 / value."""
    # float32 has no much smaller or larger numbers; long before, this is greedy, or takes all tokens alike
    value = min(max(value, 1e-20), 1e20)

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        # the best at 0, so that it stays finite; and a row of -inf alone must not become NaN
        best = log_probs.amax(1, keepdim=True).clamp(min=torch.finfo(log_probs.dtype).min)
        return (log_probs - best) / value

    return processor


def top_k(size: int) -> LogitsProcessor:
    """The `size` most probable tokens."""

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        if size >= log_probs.size(1):
            return log_probs
        values, index = log_probs.topk(size, dim=1)
        return torch.full_like(log_probs, -math.inf).scatter(1, index, values)

    return processor


def _descending(values: Tensor) -> Tensor:
    if values.device.type == "cpu":  # torch sorts an index along; 64 rows of 8,000: 91 ms against 2
        return torch.from_numpy(-np.sort(-values.detach().numpy(), axis=1))
    return values.sort(dim=1, descending=True).values


def top_p(mass: float) -> LogitsProcessor:
    """The fewest tokens, most probable first, whose share reaches `mass`; of equally probable ones the first."""

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        values = _descending(log_probs)
        fraction = values.softmax(1)
        # float32 shares that add up to the mass may miss it by a rounding error, which is no reason for one token more
        size = (fraction.cumsum(1, dtype=torch.float64) - fraction < mass - ROUNDING).sum(1, keepdim=True).clamp(min=1)
        last = values.gather(1, size - 1)
        equal = log_probs == last
        room = size - (log_probs > last).sum(1, keepdim=True)
        left_out = (log_probs < last) | (equal & (equal.cumsum(1) > room))
        return log_probs.masked_fill(left_out, -math.inf)

    return processor


def sampling_processors(*, heat: float | None, size: int | None, mass: float | None) -> list[LogitsProcessor]:
    """Temperature, top-k and top-p, those that do something, in this order; a heat of 0 is left to whoever draws."""
    chosen = [temperature(heat)] if heat else []
    if size is not None:
        chosen.append(top_k(size))
    if mass is not None and mass < 1:
        chosen.append(top_p(mass))
    return chosen


def min_p(fraction: float) -> LogitsProcessor:
    """Tokens at least `fraction` times as probable as the most probable one."""
    if fraction == 0:
        return lambda log_probs, tokens: log_probs
    below = math.log(fraction)

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        return log_probs.masked_fill(log_probs < log_probs.amax(1, keepdim=True) + below, -math.inf)

    return processor


def repetition_penalty(penalty: float) -> LogitsProcessor:
    """A token's probability divided by `penalty` for each time it stands among the last 64 tokens.

    The usual rule scales logits, which a model of log-probabilities does not have; to scale log-probabilities instead
    would leave a certain token certain, and so would not end loops, in which tokens are near certain.
    """
    cost = math.log(penalty)

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        recent = tokens[:, -REPETITION_WINDOW:]
        costs = (recent != NO_TOKEN).to(log_probs.dtype) * cost
        return log_probs.scatter_add(1, recent.clamp(min=0), -costs)

    return processor


def no_repeat_ngram(size: int) -> LogitsProcessor:
    """No token that would complete an n-gram of `size` tokens that is there already."""

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        if tokens.size(1) < size:
            return log_probs
        grams = tokens.unfold(1, size, 1)  # (B, T - size + 1, size)
        newest = tokens[:, tokens.size(1) - size + 1 :]
        seen = (grams[..., :-1] == newest.unsqueeze(1)).all(2) & (grams != NO_TOKEN).all(2)
        words = log_probs.size(1)
        # unseen ones are written to one column more, which is cut off
        banned = torch.zeros(log_probs.size(0), words + 1, dtype=torch.bool, device=log_probs.device)
        banned.scatter_(1, torch.where(seen, grams[..., -1], words), True)
        return log_probs.masked_fill(banned[:, :words], -math.inf)

    return processor


def random_noise(seed: int, prompt: int, sample: int) -> Noise:
    """Numbers of one sample of one prompt, from a generator of its own: the same in every batch."""

    @lru_cache(maxsize=1)
    def block(number: int) -> list[float]:
        drawn: list[float] = np.random.default_rng((seed, prompt, sample, number)).random(BLOCK).tolist()
        return drawn

    return lambda position: block(position // BLOCK)[position % BLOCK]


def sample_token(log_probs: Tensor, noise: Tensor | None = None) -> Tensor:
    """One token a row (B,), -1 where all are impossible: the best, or drawn by `uniform` (B,), numbers in [0, 1)."""
    top, best = log_probs.max(1)
    if noise is None:
        return best.masked_fill(top == -math.inf, NO_TOKEN)
    # float64: over a large vocabulary the tail would vanish in a float32 sum
    heap = (log_probs - top.unsqueeze(1)).double().exp().cumsum(1)
    total = heap[:, -1]
    # rounding up to the total would find a token after the last possible one
    mark = torch.minimum(noise * total, total.nextafter(torch.zeros_like(total)))
    token = torch.searchsorted(heap, mark.unsqueeze(1), right=True).squeeze(1)
    token = token.clamp(max=log_probs.size(1) - 1)  # rows with a NaN, which whoever reads the tokens refuses
    return token.masked_fill(top == -math.inf, NO_TOKEN)
