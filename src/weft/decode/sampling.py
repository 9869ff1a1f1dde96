"""Sampling and greedy decoding, one token a row at a time.

Shapes: B rows, A of them going on, T positions, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from weft.decode.choose import NOT_A_NUMBER, NOTHING, Adjust, Noise, ban, draw, right_aligned
from weft.decode.options import check_length
from weft.decode.steps import Steps
from weft.errors import ModelError
from weft.nn.state import select

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


def _to_host(chosen: Tensor, log_probs: Tensor, going: Tensor, batch: int) -> Drawn:
    """What was chosen, for every row of the batch: the one time in a step that the device is waited for."""
    spent = log_probs.gather(1, chosen.clamp(min=0).unsqueeze(1)).squeeze(1)
    numbers = torch.stack([chosen.double(), spent.double(), log_probs.amax(1).double()]).cpu()
    if numbers[2].isnan().any():  # one NaN in a row makes its maximum NaN
        raise ModelError(NOT_A_NUMBER)
    tokens = torch.full((batch,), NOTHING).index_copy(0, going, numbers[0].long())
    spent = torch.zeros(batch, dtype=torch.float64).index_copy(0, going, numbers[1])
    return Drawn(tokens, spent.masked_fill(tokens == NOTHING, 0.0))


def _goes_on(tokens: Tensor, until: Until) -> Tensor:
    on = tokens != NOTHING
    if until.end is not None:
        on &= tokens != until.end
    if until.ended is not None:
        on &= ~until.ended(tokens)
    return on


@torch.no_grad()
def sample(
    steps: Steps[S],
    prompt: Tensor,
    *,
    until: Until,
    keep: Tensor | None = None,
    state: S | None = None,
    adjust: Adjust | None = None,
    noise: Noise | None = None,
) -> Iterator[Drawn]:
    """Continuations of `prompt` (B, T), right-padded where keep is False: the best token each time, or drawn by `noise`
    (see `uniforms`). A row that has ended leaves the batch."""
    check_length(steps.longest, prompt.size(1), until.limit)
    tokens = right_aligned(prompt, keep)
    going = torch.arange(prompt.size(0))
    log_probs, past = steps.start(prompt, keep, state)
    for count in range(until.limit):
        allowed = log_probs.float()
        if until.end is not None and count < until.least:
            allowed = ban([until.end])(allowed, tokens)
        if adjust is not None:
            allowed = adjust(allowed, tokens)
        chosen = draw(allowed, None if noise is None else noise(count)[going].to(prompt.device))
        drawn = _to_host(chosen, log_probs, going, prompt.size(0))
        yield drawn
        on = _goes_on(drawn.tokens, until)[going]
        if count + 1 == until.limit or not on.any():
            return
        tokens = torch.cat([tokens, chosen.unsqueeze(1)], 1)
        if not on.all():
            rows = on.nonzero().squeeze(1).to(prompt.device)
            going, chosen, tokens, past = going[on], chosen[rows], tokens[rows], select(past, rows)
        log_probs, past = steps.step(chosen, past)
