"""States: what a model remembers between calls.

A state is a tensor, a tuple of states, or None (nothing was read yet). Rows are on axis 0 of every tensor, no Python number
is in it, and it is read once: to branch, `select` it. Joining rows of different age, then a step, equals each row alone.

What a source leaves behind is `Fixed`: reading changes nothing of it, so the rows that a search makes of one source share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


class Fixed(NamedTuple):
    """A part of a state that no step changes. After `branch` it has fewer rows than the rest: each serves K rows in a row."""

    parts: tuple[Tensor, ...]


def each(change: Callable[[Tensor], Tensor], state: S) -> S:
    """The same state with every tensor changed."""

    def walk(part: Any) -> Any:
        if part is None or isinstance(part, Tensor):
            return None if part is None else change(part)
        changed = tuple(walk(inner) for inner in part)
        return Fixed(*changed) if isinstance(part, Fixed) else changed

    new: S = walk(state)
    return new


def leaves(state: Any) -> list[Tensor]:
    """Every tensor of a state, in the order `each` visits them."""
    found: list[Tensor] = []

    def note(part: Tensor) -> Tensor:
        found.append(part)
        return part

    each(note, state)
    return found


def select(state: S, rows: Tensor) -> S:
    """Keep, repeat, reorder or drop rows; always a copy."""
    return each(lambda part: part.index_select(0, rows), state)


def branch(state: S, rows: Tensor, sources: Tensor | None) -> S:
    """The rows (B,) that a search goes on with, K for each source, side by side. What is fixed stays at one row a source: the
    `sources` (A,), or all of them where None, and nothing of it is copied."""

    def walk(part: Any) -> Any:
        if isinstance(part, Fixed):
            return part if sources is None else select(part, sources)
        if part is None or isinstance(part, Tensor):
            return None if part is None else part.index_select(0, rows)
        return tuple(walk(inner) for inner in part)

    new: S = walk(state)
    return new


def hold(new: S, old: S, keep: Tensor) -> S:
    """The rows of `new` where keep (B,) is True, those of `old` elsewhere; both have the same shape."""
    past = iter(leaves(old))
    return each(lambda part: torch.where(keep.view(-1, *[1] * (part.dim() - 1)), part, next(past)), new)


def detach(state: S) -> S:
    """The same numbers, cut off from the graph that made them."""
    return each(lambda part: part.detach(), state)


def join(first: S, second: S) -> S:
    """The rows of both; shorter parts are filled up: False in masks, -1 elsewhere, and no mask lets either through."""

    def both(a: Any, b: Any) -> Any:
        if a is None and b is None:
            return None
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() == b.dim():
            return _join_tensors(a, b)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            joined = tuple(both(x, y) for x, y in zip(a, b, strict=True))
            return Fixed(*joined) if isinstance(a, Fixed) else joined
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
