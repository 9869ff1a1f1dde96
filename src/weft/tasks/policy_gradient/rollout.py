"""Responses of a policy, with their rewards.

Shapes: P prompts, R rows, T positions, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.data.bucketing import batch_edges
from weft.decode.engine import Engine, Request
from weft.decode.logits_processors import NO_TOKEN, ban_tokens, random_noise
from weft.errors import DataError
from weft.tasks.responses.batching import pad_rows
from weft.text.tokenizers import Tokenizer

BANNED: tuple[int, ...] = (Tokenizer.unk_id, Tokenizer.bos_id)  # never generated: not part of the distribution
MAX_ROWS = 64  # decoded at once
FIX = "correct it and train again, which resumes at the last checkpoint"
PairRewards = Callable[[Sequence[str], Sequence[str]], Sequence[float]]


class Responses(NamedTuple):
    """Prompts and sampled responses as rows."""

    tokens: Tensor  # int64 (R, T + 1): prompt, response, padding
    mask: Tensor  # bool (R, T): True on targets that are tokens of the response
    texts: list[str]  # R, without </s>
    lengths: list[int]  # R: tokens of each response, with </s>


def sample_responses(
    model: Any, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, *, max_new_tokens: int, seed: int, device: torch.device
) -> Responses:
    """One response to each prompt, sampled from the distribution of the model. A row depends only on the seed and its index."""
    outputs: list[list[int]] = [[] for _ in prompts]
    processor = ban_tokens(BANNED)
    for low in range(0, len(prompts), MAX_ROWS):
        engine: Engine[Any] = Engine(model, device)
        rows = range(low, min(low + MAX_ROWS, len(prompts)))
        engine.admit(
            [Request(prompts[row], max_new_tokens, tokenizer.eos_id, 0, processor, random_noise(seed, row, 0)) for row in rows]
        )
        while engine.running:
            for event in (event for event in engine.step() if event.token != NO_TOKEN):
                outputs[low + event.row].append(event.token)
    tokens = pad_rows([np.array([*prompt, *output]) for prompt, output in zip(prompts, outputs, strict=True)])
    starts = np.array([len(prompt) for prompt in prompts])[:, None]
    ends = starts + np.array([len(output) for output in outputs])[:, None]
    positions = np.arange(1, tokens.shape[1])
    texts = [tokenizer.decode([token for token in output if token != tokenizer.eos_id]) for output in outputs]
    return Responses(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy((positions >= starts) & (positions < ends)).to(device),
        texts,
        [len(output) for output in outputs],
    )


class TokenScores(NamedTuple):
    """Statistics of the tokens of responses under a model, 0 outside the mask."""

    log_probs: Tensor  # (R, T)
    entropy: Tensor | None  # (R, T): entropy of the distribution of each token, in nats
    hidden: Tensor  # (R, T, D): the states that predict them


def score_tokens(model: Any, tokens: Tensor, mask: Tensor, *, entropy: bool = False) -> TokenScores:
    """Log-probabilities of the tokens in the mask, in the distribution without banned tokens."""
    hidden, _ = model(tokens[:, :-1], None, model.stack.padding_mask(mask))
    logits = model.head.logits(hidden).index_fill(-1, torch.tensor(BANNED, device=tokens.device), -math.inf)
    all_log_probs = logits.log_softmax(-1)
    log_probs = all_log_probs.gather(-1, tokens[:, 1:, None])[..., 0].masked_fill(~mask, 0.0)
    entropies = None
    if entropy:
        terms = all_log_probs.exp() * all_log_probs.masked_fill(all_log_probs == -math.inf, 0.0)
        entropies = -terms.sum(-1).masked_fill(~mask, 0.0)
    return TokenScores(log_probs, entropies, hidden)


@torch.no_grad()
def score_in_batches(
    model: Any, tokens: Tensor, mask: Tensor, batch_tokens: int, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`score_tokens` without hidden states, in batches that fit into memory."""
    edges = batch_edges(np.full(len(tokens), tokens.size(1)), batch_tokens).tolist()
    parts = [score_tokens(model, tokens[low:high], mask[low:high], entropy=entropy) for low, high in pairwise(edges)]
    log_probs = torch.cat([part.log_probs for part in parts])
    return log_probs, torch.cat([part.entropy for part in parts if part.entropy is not None]) if entropy else None


# ---- rewards


def checked_rewards(
    function: PairRewards, prompts: Sequence[str], responses: Sequence[str], location: Callable[[int], str]
) -> list[float]:
    """The rewards of responses. A function that raises an error, or returns something other than finite numbers, is reported
    with the `location` of the prompt."""
    try:
        values = list(function(list(prompts), list(responses)))
    except DataError:
        raise
    except Exception as error:
        raise _located(function, prompts, responses, location, error) from error
    if len(values) != len(responses):
        problem = f"the reward function returned {len(values)} values for {len(responses)} responses"
        raise DataError(location(0), problem, FIX)
    for index, value in enumerate(values):
        if not isinstance(value, int | float | np.floating | np.integer) or not math.isfinite(value):
            raise DataError(location(index), f"the reward function returned {value!r}", FIX)
    return [float(value) for value in values]


def _located(
    function: PairRewards,
    prompts: Sequence[str],
    responses: Sequence[str],
    location: Callable[[int], str],
    error: Exception,
) -> DataError:
    """The error with the location of the first prompt for which the function raises it alone."""
    for index, pair in enumerate(zip(prompts, responses, strict=True)):
        try:
            function([pair[0]], [pair[1]])
        except Exception as single:
            return DataError(location(index), f"the reward function raised {_describe(single)}", FIX)
    return DataError(location(0), f"the reward function raised {_describe(error)}", FIX)


def _describe(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def repetition(texts: Sequence[str]) -> list[float]:
    """The fraction of the pairs of neighboring words of each text that occurred in it before, from 0 to 1."""
    fractions = []
    for text in texts:
        words = text.split()
        pairs = list(pairwise(words))
        fractions.append(1 - len(set(pairs)) / len(pairs) if pairs else 0.0)
    return fractions
