"""Sampling and greedy decoding of a batch of rows that start together.

Shapes: B batch size, T sequence length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from weft.decode.engine import Engine, Event, Request
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import NO_TOKEN, LogitsProcessor, Noise

S = TypeVar("S")


class StoppingCriteria(NamedTuple):
    """When a row ends."""

    max_new_tokens: int
    eos_id: int | None = None  # the token that ends a row
    min_new_tokens: int = 0  # number of tokens before EOS is allowed
    # called with the new tokens (B,), on the CPU; returns which rows end, bool (B,)
    finished: Callable[[Tensor], Tensor] | None = None


class SampledStep(NamedTuple):
    """The tokens of one position, on the CPU."""

    tokens: Tensor  # (B,), -1 if the row has ended or has no possible token
    log_probs: Tensor  # (B,) float64, of the model; 0 if there is no token


def _to_step(events: Sequence[Event], batch_size: int) -> SampledStep:
    tokens, log_probs = [NO_TOKEN] * batch_size, [0.0] * batch_size
    for row, token, log_prob, _ in events:
        tokens[row], log_probs[row] = token, log_prob
    return SampledStep(torch.tensor(tokens), torch.tensor(log_probs, dtype=torch.float64))


def sample(
    model: IncrementalModel[S],
    prompt: Tensor,
    *,
    criteria: StoppingCriteria,
    token_mask: Tensor | None = None,
    state: S | None = None,
    processor: LogitsProcessor | None = None,
    noise: Sequence[Noise] | None = None,
) -> Iterator[SampledStep]:
    """Continue `prompt` (B, T), right-padded where token_mask is False: with the most probable token, or sampled with the
    `noise` of each row (see `random_noise`). Rows that have ended are removed from the batch."""
    batch_size = prompt.size(0)
    lengths = [prompt.size(1)] * batch_size if token_mask is None else token_mask.sum(1).tolist()
    requests = [
        Request(
            tokens[:length],
            criteria.max_new_tokens,
            criteria.eos_id,
            criteria.min_new_tokens,
            processor,
            None if noise is None else noise[row],
        )
        for row, (tokens, length) in enumerate(zip(prompt.tolist(), lengths, strict=True))
    ]
    engine = Engine(model, prompt.device)
    engine.admit(requests, state=state)
    while engine.running:
        step = _to_step(engine.step(), batch_size)
        yield step
        if criteria.finished is not None:
            engine.cancel_all(criteria.finished(step.tokens).nonzero().flatten().tolist())
