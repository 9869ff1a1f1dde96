"""States: everything a model carries from one call to the next, such as hidden states and key-value caches.

A state is a tensor, a tuple of states, or None (nothing was read yet): a pytree. Three rules make batched decoding work:

- axis 0 of every tensor is the batch, and a state contains no Python numbers;
- a call returns a new state and does not change the one that it reads; to branch, `select` its rows;
- rows of different lengths can be joined: a step on the joined batch equals a step on each row alone.

`SharedState` is computed from the source once and never changes, so all hypotheses of one source share it. `KVCache` grows
by one column per token. In both, columns are axis 1 of tensors (B, C) and axis -2 of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


class SharedState(NamedTuple):
    """The part of a state that no step changes. After `expand_to_beams` it has one row per source; each serves K hypotheses."""

    parts: tuple[Tensor, ...]


class KVCache(NamedTuple):
    """Keys and values of self-attention for the tokens read so far."""

    keys: Tensor  # (B, H, C, E)
    values: Tensor  # (B, H, C, E)
    positions: Tensor  # (B, C): position of each column's token, -1 if the row has no token in that column


def _rebuild(template: Any, parts: tuple[Any, ...]) -> Any:
    """Put `parts` into a tuple of the same type as `template`."""
    return type(template)(*parts) if isinstance(template, SharedState | KVCache) else parts


def tree_map(function: Callable[[Tensor], Tensor], state: S) -> S:
    """Apply `function` to every tensor of a state."""

    def walk(part: Any) -> Any:
        if part is None or isinstance(part, Tensor):
            return None if part is None else function(part)
        return _rebuild(part, tuple(walk(child) for child in part))

    mapped: S = walk(state)
    return mapped


def tree_leaves(state: Any) -> list[Tensor]:
    """All tensors of a state, in the order of `tree_map`."""
    leaves: list[Tensor] = []

    def collect(leaf: Tensor) -> Tensor:
        leaves.append(leaf)
        return leaf

    tree_map(collect, state)
    return leaves


def select(state: S, row_ids: Tensor) -> S:
    """Index the batch: keep, repeat, reorder or remove rows. Always a copy."""
    return tree_map(lambda leaf: leaf.index_select(0, row_ids), state)


def expand_to_beams(state: S, rows: Tensor, sources: Tensor | None) -> S:
    """Select the rows (B,) of the hypotheses of a beam search, K adjacent rows per source.

    Shared parts keep one row per source: the rows `sources` (A,), or all of them, without a copy, if `sources` is None.
    """

    def walk(part: Any) -> Any:
        if isinstance(part, SharedState):
            return part if sources is None else select(part, sources)
        if part is None or isinstance(part, Tensor):
            return None if part is None else part.index_select(0, rows)
        return _rebuild(part, tuple(walk(child) for child in part))

    expanded: S = walk(state)
    return expanded


def where(new: S, old: S, mask: Tensor) -> S:
    """Take the rows of `new` where `mask` (B,) is True and the rows of `old` elsewhere; both have the same shapes."""
    old_leaves = iter(tree_leaves(old))
    return tree_map(lambda leaf: torch.where(mask.view(-1, *[1] * (leaf.dim() - 1)), leaf, next(old_leaves)), new)


def detach(state: S) -> S:
    """Detach every tensor from the autograd graph (truncated backpropagation through time)."""
    return tree_map(lambda leaf: leaf.detach(), state)


def join(first: S, second: S) -> S:
    """Concatenate two batches. Shorter tensors are padded: masks with False, all others with -1, which the masks hide."""

    def walk(a: Any, b: Any) -> Any:
        if a is None and b is None:
            return None
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() == b.dim():
            return _join_tensors(a, b)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return _rebuild(a, tuple(walk(x, y) for x, y in zip(a, b, strict=True)))
        raise ValueError("join: the states belong to different models")

    joined: S = walk(first, second)
    return joined


def _join_tensors(a: Tensor, b: Tensor) -> Tensor:
    sizes = [max(x, y) for x, y in zip(a.shape[1:], b.shape[1:], strict=True)]
    # -1 stored in a bool tensor is True, which would open a mask
    fill_value = False if a.dtype is torch.bool else -1

    def pad(tensor: Tensor) -> Tensor:
        if list(tensor.shape[1:]) == sizes:
            return tensor
        padded = tensor.new_full((tensor.size(0), *sizes), fill_value)
        padded[tuple(slice(size) for size in tensor.shape)] = tensor
        return padded

    return torch.cat([pad(a), pad(b)])


def join_all(states: Sequence[S]) -> S:
    """Concatenate one or more batches. Joins halves recursively, so that each row is copied only log(n) times."""
    if len(states) == 1:
        return states[0]
    middle = len(states) // 2
    return join(join_all(states[:middle]), join_all(states[middle:]))


def compact(state: S) -> S:
    """Remove the columns in which no row has a token, which removed rows and the padding of joined rows leave behind."""

    def walk(part: Any) -> Any:
        if part is None or isinstance(part, Tensor):
            return part
        if isinstance(part, KVCache):
            return KVCache(*_used_columns(tuple(part), part.positions >= 0))
        if isinstance(part, SharedState):
            masks = [tensor for tensor in part.parts if tensor.dtype is torch.bool]
            return SharedState(_used_columns(part.parts, masks[0])) if len(masks) == 1 else part
        return tuple(walk(child) for child in part)

    compacted: S = walk(state)
    return compacted


def _used_columns(parts: tuple[Tensor, ...], token_mask: Tensor) -> tuple[Tensor, ...]:
    used = token_mask.any(0).nonzero().squeeze(1)
    if len(used) == token_mask.size(1):
        return parts
    return tuple(part.index_select(1 if part.dim() == 2 else -2, used) for part in parts)
