"""The exact nats of every token of a corpus, under a stated context policy.

Shapes: N predicted tokens of the corpus, R rows, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.data.batching import ScoringWindow, by_length, carried_windows, sliding_windows
from weft.data.corpus import Corpus
from weft.metrics.items import ItemStatistics
from weft.metrics.lm import block_size
from weft.tasks.lm.contexts import Context, check_positions
from weft.tasks.spec import ProgressCallback

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# of rows of tokens (R, T + 1), after a state or None: the nats of every token after the first, (R, T), and the new state
Read = Callable[[NDArray[np.int64], Any], tuple[NDArray[np.float32], Any]]

BATCH = 16384  # positions computed at once
PIECE = 4096  # positions of a row computed at once: attention's mask grows with their square
ROWS = 32  # parts of a text that are read side by side where a state is carried


class Scored(Protocol):
    """What the policies below need of a model of tensors."""

    @property
    def max_positions(self) -> int | None:
        """How many positions it can read."""

    def loss(self, tokens: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Nats of every target, (B, T), and the state after the last token."""


def scoring_windows(corpus: Corpus, context: Context) -> Iterator[ScoringWindow]:
    """The corpus once through, as the policy has it read."""
    if corpus.starts is not None:
        return by_length(corpus, batch_tokens=BATCH)
    if context.policy == "stride":
        rows = max(1, BATCH // context.context_length)
        return sliding_windows(corpus, context_length=context.context_length, stride=context.stride, rows=rows)
    rows = int(np.clip(len(corpus.tokens) // (8 * context.warmup), 1, ROWS))
    return carried_windows(corpus, context_length=max(1, BATCH // rows), rows=rows, warmup=context.warmup)


class Reads(Protocol):
    """The same of a model of arrays, which needs no torch."""

    @property
    def max_positions(self) -> int | None: ...

    def read(self, tokens: NDArray[np.int64], state: Any = None) -> tuple[NDArray[np.float32], Any]: ...


def _on(model: Any, device: torch.device) -> Read:
    """How a model of tensors on a device reads arrays."""
    import torch

    def read(rows: NDArray[np.int64], state: Any) -> tuple[NDArray[np.float32], Any]:
        tokens = torch.from_numpy(rows).to(device)
        nats, state = model.loss(tokens[:, :-1], tokens[:, 1:], state)
        found: NDArray[np.float32] = nats.float().cpu().numpy()
        return found, state

    return read


def reading(model: Scored | Reads, device: torch.device | None) -> Read:
    """How a model reads rows of tokens: on a device, or, where there is none, arrays as they are."""
    found: Read = model.read if device is None else _on(model, device)  # type: ignore[union-attr]
    return found


def token_nll(
    read: Read, tokens: NDArray[np.int64], state: Any = None, progress: Callable[[int], None] | None = None
) -> tuple[NDArray[np.float32], Any]:
    """Nats of every token after the first, (B, T - 1), and the state: a long text piece by piece, equal to all at once.

    `watch(positions done)` is told of every piece but the last, when all is done.
    """
    parts = []
    for start in range(0, tokens.shape[1] - 1, PIECE):
        if start and progress is not None:
            progress(start)
        nats, state = read(tokens[:, start : start + PIECE + 1], state)
        parts.append(nats)
    return np.concatenate(parts, axis=1), state


def _tell(progress: ProgressCallback | None, heap: NDArray[np.int64], total: int, positions: int) -> None:
    """Tell of progress, where the tokens done up to each position are heap (T,)."""
    if progress is not None:
        progress(int(heap[positions - 1]), total)


def surprisal(
    model: Scored | Reads,
    corpus: Corpus,
    context: Context,
    *,
    device: torch.device | None,
    progress: ProgressCallback | None = None,
) -> NDArray[np.float32]:
    """Nats of every predicted token, (N,), in the order of the corpus; without a device, of a model of arrays."""
    read = reading(model, device)
    check_positions(model.max_positions, corpus, context)
    found = np.full(len(corpus.tokens), np.nan, dtype=np.float32)
    state, done = None, 0
    for part in scoring_windows(corpus, context):
        column = np.arange(part.tokens.shape[1] - 1)
        counts = column >= part.first[:, None]
        if part.token_mask is not None:
            counts &= part.token_mask[:, 1:]
        heap = done + np.cumsum(counts.sum(0))
        told = partial(_tell, progress, heap, len(found))
        nats, state = token_nll(read, part.tokens, None if part.resets_state else state, told)
        found[(part.start[:, None] + column)[counts]] = nats[counts]
        told(len(column))
        done = int(heap[-1])
    return found


def items(nats: NDArray[np.float32], corpus: Corpus, edges: NDArray[np.int64] | None = None) -> ItemStatistics:
    """What was measured, line by line, or block by block of running text; or between token edges that are given."""
    if edges is None:
        blocks = np.append(np.arange(0, len(nats), block_size(len(nats))), len(nats))
        edges = blocks if corpus.starts is None else np.asarray(corpus.starts)
    summed = np.add.reduceat(nats.astype(np.float64), edges[:-1])
    counts = {name: values.astype(np.float64) for name, values in corpus.units(edges).items()}
    return ItemStatistics(np.arange(len(edges) - 1), {"nats": summed, "tokens": np.diff(edges).astype(np.float64), **counts})
