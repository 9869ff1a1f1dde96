"""Sampling and greedy decoding of rows that start together, one token a row at a time.

Shapes: B rows, T positions.
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

    max_new_tokens: int  # tokens
    eos_id: int | None = None  # after this token
    min_new_tokens: int = 0  # tokens before the end token
    finished: Callable[[Tensor], Tensor] | None = None  # sees the tokens drawn (B,), on the CPU; True (B,) where a row ends


class SampledStep(NamedTuple):
    """One position, on the CPU."""

    tokens: Tensor  # (B,), -1 where the row has ended or can't go on
    log_probs: Tensor  # (B,) float64, under the model itself, 0 where there is no token


def _drawn(events: Sequence[Event], batch: int) -> SampledStep:
    tokens, log_probs = [NO_TOKEN] * batch, [0.0] * batch
    for row, token, log_prob, _ in events:
        tokens[row], log_probs[row] = token, log_prob
    return SampledStep(torch.tensor(tokens), torch.tensor(log_probs, dtype=torch.float64))


def sample(
    steps: IncrementalModel[S],
    prompt: Tensor,
    *,
    criteria: StoppingCriteria,
    token_mask: Tensor | None = None,
    state: S | None = None,
    processor: LogitsProcessor | None = None,
    noise: Sequence[Noise] | None = None,
) -> Iterator[SampledStep]:
    """Continuations of `prompt` (B, T), right-padded where keep is False: the best token each time, or drawn by the `noise` of
    each row (see `uniforms`). A row that has ended leaves the batch."""
    batch = prompt.size(0)
    lengths = [prompt.size(1)] * batch if token_mask is None else token_mask.sum(1).tolist()
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
    engine = Engine(steps, prompt.device)
    engine.admit(requests, state=state)
    while engine.running:
        drawn = _drawn(engine.step(), batch)
        yield drawn
        if criteria.finished is not None:
            engine.cancel_all(criteria.finished(drawn.tokens).nonzero().flatten().tolist())
