"""States: what a model remembers between calls.

A state is a tensor, a tuple of states, or None (nothing was read yet). Rows are on axis 0 of every tensor, no Python number
is in it, and it is read once: to branch, `select` it. Joining rows of different age, then a step, equals each row alone.

What a source leaves behind is `Fixed`: reading changes nothing of it, so the rows that a search makes of one source share it.
What gets a column for each token read is `Grown`. In both, columns are the last axis of tensors (B, C), else the last but one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


class SharedState(NamedTuple):
    """A part of a state that no step changes. After `branch` it has fewer rows than the rest: each serves K rows in a row."""

    parts: tuple[Tensor, ...]


class Grown(NamedTuple):
    """A part of a state that grows: the keys and values of self-attention."""

    keys: Tensor  # (B, H, C, E)
    values: Tensor  # (B, H, C, E)
    at: Tensor  # (B, C), the position of each column's token, -1 where the row has none


def _like(part: Any, changed: tuple[Any, ...]) -> Any:
    """A tuple of the kind that `part` is."""
    return type(part)(*changed) if isinstance(part, SharedState | Grown) else changed


def tree_map(change: Callable[[Tensor], Tensor], state: S) -> S:
    """The same state with every tensor changed."""

    def walk(part: Any) -> Any:
        if part is None or isinstance(part, Tensor):
            return None if part is None else change(part)
        return _like(part, tuple(walk(inner) for inner in part))

    new: S = walk(state)
    return new


def tree_leaves(state: Any) -> list[Tensor]:
    """Every tensor of a state, in the order `each` visits them."""
    found: list[Tensor] = []

    def note(part: Tensor) -> Tensor:
        found.append(part)
        return part

    tree_map(note, state)
    return found


def select(state: S, row_ids: Tensor) -> S:
    """Keep, repeat, reorder or drop rows; always a copy."""
    return tree_map(lambda part: part.index_select(0, row_ids), state)


def expand_to_beams(state: S, rows: Tensor, sources: Tensor | None) -> S:
    """The rows (B,) that a search goes on with, K for each source, side by side. What is fixed stays at one row a source: the
    `sources` (A,), or all of them where None, and nothing of it is copied."""

    def walk(part: Any) -> Any:
        if isinstance(part, SharedState):
            return part if sources is None else select(part, sources)
        if part is None or isinstance(part, Tensor):
            return None if part is None else part.index_select(0, rows)
        return _like(part, tuple(walk(inner) for inner in part))

    new: S = walk(state)
    return new


def where(new: S, old: S, token_mask: Tensor) -> S:
    """The rows of `new` where keep (B,) is True, those of `old` elsewhere; both have the same shape."""
    past = iter(tree_leaves(old))
    return tree_map(lambda part: torch.where(token_mask.view(-1, *[1] * (part.dim() - 1)), part, next(past)), new)


def detach(state: S) -> S:
    """The same numbers, cut off from the graph that made them."""
    return tree_map(lambda part: part.detach(), state)


def join(first: S, second: S) -> S:
    """The rows of both; shorter parts are filled up: False in masks, -1 elsewhere, and no mask lets either through."""

    def both(a: Any, b: Any) -> Any:
        if a is None and b is None:
            return None
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() == b.dim():
            return _join_tensors(a, b)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return _like(a, tuple(both(x, y) for x, y in zip(a, b, strict=True)))
        raise ValueError("join: the two states are not of one model")

    new: S = both(first, second)
    return new


def _join_tensors(a: Tensor, b: Tensor) -> Tensor:
    sizes = [max(x, y) for x, y in zip(a.shape[1:], b.shape[1:], strict=True)]
    # -1 stored in a bool tensor is True, which would open a mask: padding is False there
    blank = False if a.dtype is torch.bool else -1

    def fill(part: Tensor) -> Tensor:
        if list(part.shape[1:]) == sizes:
            return part
        grown = part.new_full((part.size(0), *sizes), blank)
        grown[tuple(slice(size) for size in part.shape)] = part
        return grown

    return torch.cat([fill(a), fill(b)])


def join_all(states: Sequence[S]) -> S:
    """The rows of all of them, one or more: halves are joined, so that each row is copied a few times only."""
    if len(states) == 1:
        return states[0]
    middle = len(states) // 2
    return join(join_all(states[:middle]), join_all(states[middle:]))


def compact(state: S) -> S:
    """The same rows without the columns in which none of them has a token: rows that have left, and those that were filled up
    to their length, leave such columns behind."""

    def walk(part: Any) -> Any:
        if part is None or isinstance(part, Tensor):
            return part
        if isinstance(part, Grown):
            return Grown(*_used_columns(tuple(part), part.at >= 0))
        if isinstance(part, SharedState):
            masks = [inner for inner in part.parts if inner.dtype is torch.bool]
            return SharedState(_used_columns(part.parts, masks[0])) if len(masks) == 1 else part
        return tuple(walk(inner) for inner in part)

    new: S = walk(state)
    return new


def _used_columns(parts: tuple[Tensor, ...], real: Tensor) -> tuple[Tensor, ...]:
    used = real.any(0).nonzero().squeeze(1)
    if len(used) == real.size(1):
        return parts
    return tuple(part.index_select(1 if part.dim() == 2 else -2, used) for part in parts)
