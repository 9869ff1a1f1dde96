"""The exact nats of every token of a corpus, under a stated context policy.

Shapes: N predicted tokens of the corpus, R rows, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.corpus import Corpus
from weft.data.order import Stretch, by_length, carried, strided
from weft.errors import DataError, UsageError
from weft.train.objective import Watch

BATCH = 16384  # positions computed at once
PIECE = 4096  # positions of a row computed at once: attention's mask grows with their square
FULL = "full"  # the policy that gives every token its past, as far as a model reads: how, its run decides
ROWS = 32  # parts of a text that are read side by side where a state is carried


class Scored(Protocol):
    """What the policies below need of a model: n-gram and networks alike."""

    @property
    def longest(self) -> int | None:
        """How many positions it can read."""

    def loss(self, tokens: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Nats of every target, (B, T), and the state after the last token."""


class Context(NamedTuple):
    """What a token may be predicted from.

    reset: its own line. carry: all before it, by a state that is carried on (before each of up to 32 places where the text is
    cut to be read side by side, `warm` tokens are read that don't count). stride: a window of `window` tokens that moves by
    `stride`, so that each token has at least window - stride tokens before it, but at the start. Under the policy `full` it is
    the run that decides which of the three.
    """

    kind: str
    window: int
    stride: int = 0
    full: bool = False

    def __str__(self) -> str:
        before = "full/" if self.full else ""
        match self.kind:
            case "stride":
                return f"{before}stride:{self.stride}/{self.window}"
            case "carry":
                return f"{before}carry:warm-{self.warm}"
        return "reset:line"

    @property
    def warm(self) -> int:
        """Tokens that are read, not counted, before each part of a carried text: more than any n-gram looks back."""
        return max(self.window, 64)


def parse_context(text: str, *, lines: bool, window: int, default: Context) -> Context:
    """`full`, which is the default, `stride`, `stride:32`, `carry` or `reset`, as the command line gives it."""
    if text == FULL:
        return default
    kind, colon, number = text.partition(":")
    if lines != (kind == "reset"):
        raise UsageError(f"--context: {text!r} does not fit data that is read as {'lines' if lines else 'running text'}")
    if kind == "stride":
        # the length first: Python refuses to read a number of thousands of digits
        if colon and not (number.isdecimal() and len(number) < 20 and 1 <= int(number) <= window):
            raise UsageError(f"--context: the stride must be from 1 to the window of {window}, not {number!r}")
        return Context("stride", window, int(number) if colon else window)
    if text == "carry":
        return Context("carry", window)
    if text == "reset":
        return default
    raise UsageError(f"--context: must be full, reset, carry, stride or stride:N, not {text!r}")


def stretches(corpus: Corpus, context: Context) -> Iterator[Stretch]:
    """The corpus once through, as the policy has it read."""
    if corpus.starts is not None:
        return by_length(corpus, batch_tokens=BATCH)
    if context.kind == "stride":
        rows = max(1, BATCH // context.window)
        return strided(corpus, window=context.window, stride=context.stride, rows=rows)
    rows = int(np.clip(len(corpus.tokens) // (8 * context.warm), 1, ROWS))
    return carried(corpus, window=max(1, BATCH // rows), rows=rows, warm=context.warm)


def check_positions(longest: int | None, corpus: Corpus, context: Context) -> None:
    """Refuse, before the first token, a text that would pass the last position a model can read."""
    if longest is None:
        return
    if corpus.starts is not None:
        lengths = np.diff(corpus.starts)
        line = int(lengths.argmax())
        if lengths[line] > longest:
            raise DataError(
                f"data: line {line + 1} of {corpus.name} has {lengths[line]} tokens, but the model reads at most {longest}; "
                f"shorten it, or train with data.window = {lengths[line]} or other positions"
            )
    elif context.kind == "carry" and len(corpus.tokens) + len(corpus.opening) - 1 > longest:
        raise UsageError(f"--context: 'carry' runs on, but the model reads at most {longest} positions; use 'stride'")


def nats_of(model: Scored, tokens: Tensor, state: Any = None, watch: Callable[[int], None] | None = None) -> tuple[Tensor, Any]:
    """Nats of every token after the first, (B, T - 1), and the state: a long text piece by piece, equal to all at once.

    `watch(positions done)` is told of every piece but the last, when all is done.
    """
    parts = []
    for start in range(0, tokens.size(1) - 1, PIECE):
        if start and watch is not None:
            watch(start)
        piece = tokens[:, start : start + PIECE + 1]
        nats, state = model.loss(piece[:, :-1], piece[:, 1:], state)
        parts.append(nats)
    return torch.cat(parts, dim=1), state


def _tell(watch: Watch | None, heap: NDArray[np.int64], total: int, positions: int) -> None:
    """Tell of progress, where the tokens done up to each position are heap (T,)."""
    if watch is not None:
        watch(int(heap[positions - 1]), total)


def surprisal(
    model: Scored, corpus: Corpus, context: Context, *, device: torch.device, watch: Watch | None = None
) -> NDArray[np.float32]:
    """Nats of every predicted token, (N,), in the order of the corpus."""
    check_positions(model.longest, corpus, context)
    found = np.full(len(corpus.tokens), np.nan, dtype=np.float32)
    state, done = None, 0
    for part in stretches(corpus, context):
        tokens = part.tokens.to(device)
        column = np.arange(tokens.size(1) - 1)
        counts = column >= part.first[:, None]
        if part.keep is not None:
            counts &= part.keep[:, 1:].numpy()
        heap = done + np.cumsum(counts.sum(0))
        told = partial(_tell, watch, heap, len(found))
        nats, state = nats_of(model, tokens, None if part.anew else state, told)
        found[(part.at[:, None] + column)[counts]] = nats.float().cpu().numpy()[counts]
        told(len(column))
        done = int(heap[-1])
    return found
