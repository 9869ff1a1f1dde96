"""States: everything a model carries from one call to the next, such as hidden states and key-value caches.

A state is a tensor, a tuple of states, or None (nothing was read yet): a pytree. Three rules make batched decoding work:

- axis 0 of every tensor is the batch, and a state contains no Python numbers;
- a call returns a new state and does not change the one that it reads; to branch, `select` its rows;
- rows of different lengths can be joined: a step on the joined batch equals a step on each row alone.

`SharedState` is computed from the source once and never changes, so all hypotheses of one source share it. `KVCache` grows
by one column per token. In both, columns are axis 1 of tensors (B, C) and axis -2 of all others. In a beam search on a CPU,
`expand_to_beams` turns a `KVCache` into a `BeamCache`, which is smaller: hypotheses of one sentence have most tokens in common.
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

    def own_buffer(self) -> Any:
        """The buffer that the tensors are views of, if it can be extended in place; see `weft.nn.attention_step`."""
        return None


class BeamCache(NamedTuple):
    """Keys and values of self-attention for all tokens in the K hypotheses of each sentence. To reorder hypotheses, no key is
    copied."""

    keys: Tensor  # (A, H, C, E)
    values: Tensor  # (A, H, C, E)
    positions: Tensor  # (A, C): position of each column's token, -1 if the sentence has no token in that column
    visible: Tensor  # (A, K, C): whether each hypothesis contains the token

    def own_buffer(self) -> Any:
        """As in `KVCache`."""
        return None

    def reordered(self, rows: Tensor, known: dict[int, tuple[Tensor, Tensor, bool]]) -> BeamCache:
        """The cache of hypotheses that extend those in these rows (A * K,). `known` remembers what was computed for other
        layers, which may share the tensor `visible`, by its identity."""
        before = self.visible
        if id(before) not in known:
            parents = rows.view(before.size(0), -1) % before.size(1)
            visible = before.gather(1, parents.unsqueeze(2).expand(-1, -1, before.size(2)))
            num_columns = self.with_visible(visible).num_columns()
            known[id(before)] = before, visible, visible.size(2) >= num_columns + MAX_DEAD_COLUMNS
        _, visible, is_sparse = known[id(before)]
        cache = self.with_visible(visible)
        return cache.packed() if is_sparse else cache

    def with_visible(self, visible: Tensor) -> BeamCache:
        """The cache of hypotheses that contain other tokens."""
        return self._replace(visible=visible)

    def num_columns(self) -> int:
        """The number of columns that are needed: the most tokens that the hypotheses of one sentence contain."""
        return int(self.visible.any(1).sum(1).max())

    def packed(self) -> BeamCache:
        """Without tokens that are in no hypothesis any more."""
        is_used, columns = self.visible.any(1).sort(dim=1, descending=True, stable=True)
        num_columns = self.num_columns()
        is_used, columns = is_used[:, :num_columns], columns[:, :num_columns]
        # one index per vector of a key, which is several times faster than `gather` with one per number
        num_sentences, num_heads, width, _ = self.keys.shape
        start = torch.arange(num_sentences * num_heads, device=columns.device).view(num_sentences, num_heads, 1) * width
        rows = (start + columns.unsqueeze(1)).flatten()
        keys, values = (
            part.reshape(-1, part.size(3)).index_select(0, rows).view(num_sentences, num_heads, num_columns, -1)
            for part in (self.keys, self.values)
        )
        positions = self.positions.gather(1, columns).masked_fill(~is_used, -1)
        visible = self.visible.gather(2, columns.unsqueeze(1).expand(-1, self.visible.size(1), -1))
        return BeamCache(keys, values, positions, visible)


MAX_DEAD_COLUMNS = 16  # tokens in no hypothesis that a BeamCache keeps, because removing them is a copy
_TYPES = (SharedState, KVCache, BeamCache)


def _rebuild(template: Any, parts: tuple[Any, ...]) -> Any:
    """Put `parts` into a tuple of the same type as `template`."""
    return type(template)(*parts) if isinstance(template, _TYPES) else parts


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

    known = dict[int, tuple[Tensor, Tensor, bool]]()

    def walk(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.index_select(0, rows)
        if isinstance(part, SharedState):
            return part if sources is None else select(part, sources)
        if isinstance(part, KVCache) and part.keys.device.type == "cpu":
            return _expand_cache(part, rows, sources)
        if isinstance(part, BeamCache):
            cache = part if sources is None else select(part, sources)
            return cache.reordered(rows, known)
        return None if part is None else _rebuild(part, tuple(walk(child) for child in part))

    expanded: S = walk(state)
    return expanded


def _expand_cache(cache: KVCache, rows: Tensor, sources: Tensor | None) -> KVCache | BeamCache:
    """The cache of K hypotheses per source, from that of one hypothesis per source; it stays what it is if K = 1."""
    num_sources = cache.positions.size(0) if sources is None else sources.size(0)
    if rows.size(0) == num_sources:
        return select(cache, rows)
    keys, values, positions = cache if sources is None else select(cache, sources)
    visible = (positions >= 0).unsqueeze(1).expand(-1, rows.size(0) // num_sources, -1)
    return BeamCache(keys, values, positions, visible)


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
        if isinstance(part, BeamCache):
            return part if part.num_columns() == part.visible.size(2) else part.packed()
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
