"""Logits processors, which change the scores of the next token, and sampling.

A processor is a function `processor(log_probs, tokens) -> log_probs`. `tokens` contains all previous tokens, prompt included,
right-aligned: the last column is the newest token, and shorter rows are padded with -1 on the left. Processors neither need
nor return normalized rows, and a row may become -inf everywhere.

Shapes: B batch size, T sequence length, V vocabulary size.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
ListFunction = Callable[[list[float]], list[float]]
Noise = Callable[[int], float]  # the random number in [0, 1) that samples the token of a row at a position

NO_TOKEN = -1  # padding, and the next token of a row that has none
NAN_PROBS = "the model computes NaN probabilities (its weights are corrupted or have diverged)"
BLOCK_SIZE = 256  # random numbers drawn at once
LARGEST_NOISE = 1 - 2.0**-52  # times a number, it is less than the number
MIN_PLAIN_TEMPERATURE = 1e-3  # log-probabilities stay finite if they are divided by it
ROUNDING_ERROR = 1e-6  # of sums of float32 probabilities
MAX_FEW = 512  # log-probabilities that `sample_few` samples from faster than `sample_token`
REPETITION_WINDOW = 64  # tokens that the penalty considers: over a whole long text it would ban every frequent word


def right_aligned(prompt: Tensor, token_mask: Tensor | None) -> Tensor:
    """Move the padding of right-padded tokens (B, T) to the left, as -1."""
    if token_mask is None:
        return prompt
    column = torch.arange(prompt.size(1), device=prompt.device) - (~token_mask).sum(1, keepdim=True)
    return prompt.gather(1, column.clamp(min=0)).masked_fill(column < 0, NO_TOKEN)


class TokenFree:
    """A processor that does not look at the tokens: a decoder need not collect them. If it can, it processes a list of the
    log-probabilities of one row, in float32, as well: if these are few, a loop is faster than the operations of torch."""

    def __init__(self, function: Callable[[Tensor], Tensor], in_list: ListFunction | None = None) -> None:
        self.function, self.in_list = function, in_list

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        return self.function(log_probs)


def compose(processors: Sequence[LogitsProcessor]) -> LogitsProcessor:
    """Apply several processors in this order."""
    free = [step for step in processors if isinstance(step, TokenFree)]
    functions = [step.function for step in free]
    list_functions = [step.in_list for step in free if step.in_list is not None]

    def function(log_probs: Tensor) -> Tensor:
        for step in functions:
            log_probs = step(log_probs)
        return log_probs

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        for step in processors:
            log_probs = step(log_probs, tokens)
        return log_probs

    def in_list(log_probs: list[float]) -> list[float]:
        for step in list_functions:
            log_probs = step(log_probs)
        return log_probs

    if len(free) < len(processors):
        return processor
    return TokenFree(function, in_list if len(list_functions) == len(processors) else None)


def ban_tokens(banned: Sequence[int]) -> LogitsProcessor:
    """Never generate these tokens."""

    offsets = dict[tuple[int, torch.dtype, torch.device], Tensor]()  # what is added: 0, or -inf for banned tokens

    def processor(log_probs: Tensor) -> Tensor:
        key = (log_probs.size(1), log_probs.dtype, log_probs.device)
        offset = offsets.get(key)
        if offset is None:
            row = torch.zeros(key[0], dtype=key[1])
            row[list(banned)] = -math.inf
            offset = offsets[key] = row.to(key[2])
        return log_probs + offset

    def in_list(log_probs: list[float]) -> list[float]:
        allowed = log_probs.copy()
        for token in banned:
            allowed[token] += -math.inf  # NaN stays NaN
        return allowed

    return TokenFree(processor, in_list)


def temperature(value: float) -> LogitsProcessor:
    """Divide log-probabilities by the temperature."""
    # limited to the range of float32; sampling is already greedy or uniform at these limits
    value = min(max(value, 1e-20), 1e20)
    if value >= MIN_PLAIN_TEMPERATURE:
        divisor = float(np.float32(value))
        # rounded to float32 like the numbers of a tensor: a row gets the same tokens alone and among others
        return TokenFree(
            lambda log_probs: log_probs / value, lambda row: array("f", [number / divisor for number in row]).tolist()
        )

    def processor(log_probs: Tensor) -> Tensor:
        # shifted so that the best token is 0 and stays finite; a row of -inf must not become NaN
        best = log_probs.amax(1, keepdim=True).clamp(min=torch.finfo(log_probs.dtype).min)
        return (log_probs - best) / value

    return TokenFree(processor)


def top_k(k: int) -> LogitsProcessor:
    """Keep the k most probable tokens (Fan et al. 2018)."""

    def processor(log_probs: Tensor) -> Tensor:
        if k >= log_probs.size(1):
            return log_probs
        values, index = log_probs.topk(k, dim=1)
        return torch.full_like(log_probs, -math.inf).scatter(1, index, values)

    return TokenFree(processor)


def _sort_descending(values: Tensor) -> Tensor:
    if values.device.type == "cpu":  # torch also sorts indices: 91 ms against 2 ms for 64 rows of 8,000
        return torch.from_numpy(-np.sort(-values.detach().numpy(), axis=1))
    return values.sort(dim=1, descending=True).values


def top_p(p: float) -> LogitsProcessor:
    """Keep the smallest set of most probable tokens whose probability reaches p (nucleus sampling, Holtzman et al. 2020). Of
    equally probable tokens, the first ones are kept."""

    def processor(log_probs: Tensor) -> Tensor:
        values = _sort_descending(log_probs)
        probs = values.softmax(1)
        # a sum of float32 probabilities may miss p by a rounding error, which must not add a token
        size = (probs.cumsum(1, dtype=torch.float64) - probs < p - ROUNDING_ERROR).sum(1, keepdim=True).clamp(min=1)
        threshold = values.gather(1, size - 1)
        is_tie = log_probs == threshold
        num_ties = size - (log_probs > threshold).sum(1, keepdim=True)
        excluded = (log_probs < threshold) | (is_tie & (is_tie.cumsum(1) > num_ties))
        return log_probs.masked_fill(excluded, -math.inf)

    return TokenFree(processor)


def sampling_processors(*, temperature_value: float | None, k: int | None, p: float | None) -> list[LogitsProcessor]:
    """The processors of temperature, top-k and top-p, in this order, without those that have no effect. A temperature of 0
    (greedy) is left to the caller."""
    processors = [temperature(temperature_value)] if temperature_value else []
    if k is not None:
        processors.append(top_k(k))
    if p is not None and p < 1:
        processors.append(top_p(p))
    return processors


def min_p(p: float) -> LogitsProcessor:
    """Keep tokens that are at least p times as probable as the most probable one."""
    if p == 0:
        return TokenFree(lambda log_probs: log_probs)
    log_p = math.log(p)

    def processor(log_probs: Tensor) -> Tensor:
        return log_probs.masked_fill(log_probs < log_probs.amax(1, keepdim=True) + log_p, -math.inf)

    return TokenFree(processor)


def repetition_penalty(penalty: float) -> LogitsProcessor:
    """Divide the probability of a token by `penalty` for each occurrence among the last 64 tokens.

    The usual rule (Keskar et al. 2019) scales logits, but models return log-probabilities here. Scaling those has no effect on
    a token with probability 1, and so would not end loops, in which tokens have probabilities near 1.
    """
    log_penalty = math.log(penalty)

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        recent = tokens[:, -REPETITION_WINDOW:]
        penalties = (recent != NO_TOKEN).to(log_probs.dtype) * log_penalty
        return log_probs.scatter_add(1, recent.clamp(min=0), -penalties)

    return processor


def no_repeat_ngram(size: int) -> LogitsProcessor:
    """Exclude tokens that would complete an n-gram of `size` tokens that occurred before (Paulus et al. 2018)."""

    def processor(log_probs: Tensor, tokens: Tensor) -> Tensor:
        if tokens.size(1) < size:
            return log_probs
        ngrams = tokens.unfold(1, size, 1)  # (B, T - size + 1, size)
        context = tokens[:, tokens.size(1) - size + 1 :]
        matches = (ngrams[..., :-1] == context.unsqueeze(1)).all(2) & (ngrams != NO_TOKEN).all(2)
        vocab_size = log_probs.size(1)
        # n-grams that do not match are written to an extra column, which is cut off
        banned = torch.zeros(log_probs.size(0), vocab_size + 1, dtype=torch.bool, device=log_probs.device)
        banned.scatter_(1, torch.where(matches, ngrams[..., -1], vocab_size), True)
        return log_probs.masked_fill(banned[:, :vocab_size], -math.inf)

    return processor


def random_noise(seed: int, prompt: int, sample: int) -> Noise:
    """Random numbers for one sample of one prompt, from its own generator: the same in every batch."""

    @lru_cache(maxsize=1)
    def block(index: int) -> list[float]:
        numbers: list[float] = np.random.default_rng((seed, prompt, sample, index)).random(BLOCK_SIZE).tolist()
        return numbers

    return lambda position: block(position // BLOCK_SIZE)[position % BLOCK_SIZE]


def sample_few(log_probs: Sequence[Sequence[float]], noise: Sequence[float]) -> list[int]:
    """`sample_token` without tensors: if there are few numbers, operations of torch take longer than a loop."""
    tokens = []
    for row, number in zip(log_probs, noise, strict=True):
        best = max(row)
        cumulative = list(accumulate([math.exp(log_prob - best) for log_prob in row]))  # NaN if all are -inf
        total = cumulative[-1]
        tokens.append(NO_TOKEN if math.isnan(total) else bisect_right(cumulative, min(number, LARGEST_NOISE) * total))
    return tokens


def sample_token(log_probs: Tensor, noise: Tensor | None = None) -> Tensor:
    """One token per row (B,): the most probable, or sampled with `noise` (B,), random numbers in [0, 1). -1 if every token is
    impossible."""
    if noise is None:
        max_log_prob, best = log_probs.max(1)
        return best.masked_fill(max_log_prob == -math.inf, NO_TOKEN)
    # few operations: for a small model, they take as long as its layers. float64: in a float32 sum over a large vocabulary the
    # tail would vanish
    cumulative = torch.softmax(log_probs, 1, dtype=torch.float64).cumsum(1)
    total = cumulative[:, -1:]  # NaN if every token is impossible
    # below the total: rounding up to it would select a token after the last possible one
    threshold = noise.double().clamp(max=LARGEST_NOISE).unsqueeze(1) * total
    return torch.searchsorted(cumulative, threshold, right=True).masked_fill_(total.isnan(), NO_TOKEN).squeeze(1)
