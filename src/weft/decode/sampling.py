"""Sampling and greedy decoding of rows that start together, one token a row at a time.

Shapes: B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from weft.decode.choose import NOTHING, Adjust, Noise
from weft.decode.engine import Engine, Event, Request
from weft.decode.steps import Steps

S = TypeVar("S")


class Until(NamedTuple):
    """When a row ends."""

    limit: int  # tokens
    end: int | None = None  # after this token
    least: int = 0  # tokens before the end token
    ended: Callable[[Tensor], Tensor] | None = None  # sees the tokens drawn (B,), on the CPU; True (B,) where a row ends


class Drawn(NamedTuple):
    """One position, on the CPU."""

    tokens: Tensor  # (B,), -1 where the row has ended or can't go on
    log_probs: Tensor  # (B,) float64, under the model itself, 0 where there is no token


def _drawn(events: Sequence[Event], batch: int) -> Drawn:
    tokens, log_probs = [NOTHING] * batch, [0.0] * batch
    for row, token, log_prob, _ in events:
        tokens[row], log_probs[row] = token, log_prob
    return Drawn(torch.tensor(tokens), torch.tensor(log_probs, dtype=torch.float64))


def sample(
    steps: Steps[S],
    prompt: Tensor,
    *,
    until: Until,
    keep: Tensor | None = None,
    state: S | None = None,
    adjust: Adjust | None = None,
    noise: Sequence[Noise] | None = None,
) -> Iterator[Drawn]:
    """Continuations of `prompt` (B, T), right-padded where keep is False: the best token each time, or drawn by the `noise` of
    each row (see `uniforms`). A row that has ended leaves the batch."""
    batch = prompt.size(0)
    lengths = [prompt.size(1)] * batch if keep is None else keep.sum(1).tolist()
    requests = [
        Request(tokens[:length], until.limit, until.end, until.least, adjust, None if noise is None else noise[row])
        for row, (tokens, length) in enumerate(zip(prompt.tolist(), lengths, strict=True))
    ]
    engine = Engine(steps, prompt.device)
    engine.admit(requests, state=state)
    while engine.running:
        drawn = _drawn(engine.step(), batch)
        yield drawn
        if until.ended is not None:
            engine.cancel_all(until.ended(drawn.tokens).nonzero().flatten().tolist())
