"""The exact negative log-likelihood of every token of a corpus, under a context policy.

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
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import share, sum_arrays
from weft.tasks.lm.contexts import Context, check_positions
from weft.tasks.spec import ProgressCallback

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# from tokens (R, T + 1) and a state or None: the negative log-likelihood of every token after the first, (R, T), or several
# values, (R, T, values), and the state
NLLFunction = Callable[[NDArray[np.int64], Any], tuple[NDArray[np.float32], Any]]

BATCH_TOKENS = 16384  # positions computed at once
CHUNK_TOKENS = 4096  # positions of a row computed at once: the attention mask grows with their square
MAX_PARTS = 32  # parts of a text that are read in parallel if a state is carried


class TensorModel(Protocol):
    """A model that computes with tensors."""

    @property
    def max_positions(self) -> int | None:
        """Maximum number of positions."""

    def loss(self, tokens: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """The negative log-likelihood of every target, (B, T), and the state after the last token."""


class ArrayModel(Protocol):
    """A model that computes with arrays, without torch."""

    @property
    def max_positions(self) -> int | None: ...

    def loss_numpy(self, tokens: NDArray[np.int64], state: Any = None) -> tuple[NDArray[np.float32], Any]:
        """The negative log-likelihood of every token after the first, (B, T - 1), and the state after the last token."""


def scoring_windows(corpus: Corpus, context: Context) -> Iterator[ScoringWindow]:
    """One pass over the corpus with a context policy."""
    if corpus.starts is not None:
        return by_length(corpus, batch_tokens=BATCH_TOKENS)
    if context.policy == "stride":
        rows = max(1, BATCH_TOKENS // context.context_length)
        return sliding_windows(corpus, context_length=context.context_length, stride=context.stride, rows=rows)
    rows = int(np.clip(len(corpus.tokens) // (8 * context.warmup), 1, MAX_PARTS))
    return carried_windows(corpus, context_length=max(1, BATCH_TOKENS // rows), rows=rows, warmup=context.warmup)


def _tensor_nll(model: Any, device: torch.device) -> NLLFunction:
    """The `nll_function` of a model that computes with tensors."""
    import torch

    def score_rows(rows: NDArray[np.int64], state: Any) -> tuple[NDArray[np.float32], Any]:
        tokens = torch.from_numpy(rows).to(device)
        nll, state = model.loss(tokens[:, :-1], tokens[:, 1:], state)
        result: NDArray[np.float32] = nll.float().cpu().numpy()
        return result, state

    return score_rows


def nll_function(model: TensorModel | ArrayModel, device: torch.device | None) -> NLLFunction:
    """The function that scores rows of tokens: on a device, or with arrays if `device` is None."""
    result: NLLFunction = model.loss_numpy if device is None else _tensor_nll(model, device)  # type: ignore[union-attr]
    return result


def token_nll(
    function: NLLFunction, tokens: NDArray[np.int64], state: Any = None, progress: Callable[[int], None] | None = None
) -> tuple[NDArray[np.float32], Any]:
    """The negative log-likelihood of every token after the first, (B, T - 1), and the state. A long text is processed in
    chunks, with the same result.

    `progress` gets the positions done, after every chunk but the last.
    """
    chunks = []
    for start in range(0, tokens.shape[1] - 1, CHUNK_TOKENS):
        if start and progress is not None:
            progress(start)
        nll, state = function(tokens[:, start : start + CHUNK_TOKENS + 1], state)
        chunks.append(nll)
    return np.concatenate(chunks, axis=1), state


def _report(progress: ProgressCallback | None, done: NDArray[np.int64], total: int, positions: int) -> None:
    """Report progress after `positions` positions; `done` (T,) are the tokens done up to each position."""
    if progress is not None:
        progress(int(done[positions - 1]), total)


def _own_windows(corpus: Corpus, context: Context, group: Group) -> Iterator[ScoringWindow]:
    """The windows that this process of a group computes: some of them, or some rows of each if a state is carried from one to
    the next."""
    windows = scoring_windows(corpus, context)
    if group.size == 1:
        return windows
    if corpus.starts is not None or context.policy == "stride":
        return share(windows, group)
    group.begin()
    return (_rows(window, group) for window in windows if len(window.start) > group.rank)


def _rows(window: ScoringWindow, group: Group) -> ScoringWindow:
    """The rows of a window that this process computes."""
    rows = slice(group.rank, None, group.size)
    token_mask = None if window.token_mask is None else window.token_mask[rows]
    return window._replace(
        tokens=window.tokens[rows], token_mask=token_mask, first=window.first[rows], start=window.start[rows]
    )


def per_token(
    function: NLLFunction,
    corpus: Corpus,
    context: Context,
    progress: ProgressCallback | None = None,
    group: Group = ALONE,
) -> NDArray[np.float32]:
    """The values of `function` for every predicted token, (N,) or (N, values), in the order of the corpus. The processes of a
    group share the windows of a function with one value."""
    result: NDArray[np.float32] | None = None if group.size == 1 else np.zeros(len(corpus.tokens), np.float32)
    state, done, total = None, 0, len(corpus.tokens)
    for window in _own_windows(corpus, context, group):
        columns = np.arange(window.tokens.shape[1] - 1)
        counts = columns >= window.first[:, None]
        if window.token_mask is not None:
            counts &= window.token_mask[:, 1:]
        done_at = done + np.cumsum(counts.sum(0))
        report = partial(_report, progress, np.minimum(done_at * group.size, total), total)
        values, state = token_nll(function, window.tokens, None if window.resets_state else state, report)
        if result is None:
            result = np.full((total, *values.shape[2:]), np.nan, dtype=np.float32)
        result[(window.start[:, None] + columns)[counts]] = values[counts]
        report(len(columns))
        done = int(done_at[-1])
    return np.zeros(0, np.float32) if result is None else sum_arrays(result, group)


def surprisal(
    model: TensorModel | ArrayModel,
    corpus: Corpus,
    context: Context,
    *,
    device: torch.device | None,
    progress: ProgressCallback | None = None,
    group: Group = ALONE,
) -> NDArray[np.float32]:
    """The negative log-likelihood of every predicted token, (N,), in the order of the corpus. `device` is None for a model that
    computes with arrays."""
    check_positions(model.max_positions, corpus, context)
    return per_token(nll_function(model, device), corpus, context, progress, group)


def items(nll: NDArray[np.float32], corpus: Corpus, edges: NDArray[np.int64] | None = None) -> ItemStatistics:
    """Statistics of each line, or of each block of running text, or between token edges."""
    if edges is None:
        blocks = np.append(np.arange(0, len(nll), block_size(len(nll))), len(nll))
        edges = blocks if corpus.starts is None else np.asarray(corpus.starts)
    totals = np.add.reduceat(nll.astype(np.float64), edges[:-1])
    counts = {name: values.astype(np.float64) for name, values in corpus.units(edges).items()}
    return ItemStatistics(np.arange(len(edges) - 1), {"nats": totals, "tokens": np.diff(edges).astype(np.float64), **counts})
