"""Batches in parts: micro-batches, and the rows of each process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.data.batch import map_tensors
from weft.nn.state import join_all, select, tree_leaves, tree_map
from weft.parallel.group import Group
from weft.parallel.rows import parts_of, rows_of_rank


class MicroBatch(NamedTuple):
    """Rows that are computed at once."""

    number: int  # of the part; see `weft.parallel.rows`
    batch: Any  # tensors (B, ...) or None
    carry: Any  # the state of these rows
    counts: bool  # False for a process without rows: it computes a row of another one, which counts nothing


def micro_batches(batch: Any, carry: Any, number: int, group: Group) -> Iterator[MicroBatch]:
    """The parts of a batch that this process computes, each with its rows of the carried state. All processes have equally many
    parts, since they exchange gradients and shards in each."""
    num_rows, start = len(batch[0]), 0
    for part in parts_of(num_rows, number, rank=group.rank, size=group.size):
        if len(part.rows) == num_rows:
            yield MicroBatch(part.number, batch, carry, True)
            continue
        counts = len(part.rows) > 0
        rows = part.rows if counts else torch.zeros(1, dtype=torch.long)
        state = select_rows(carry, torch.arange(start, start + len(part.rows))) if counts else None
        start += len(part.rows)
        yield MicroBatch(part.number, map_tensors(batch, partial(_index, rows=rows)), state, counts)


def _index(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor.index_select(0, rows.to(tensor.device))


def select_rows(carry: Any, rows: Tensor) -> Any:
    """The rows (R,) of a state, on whatever device it is."""
    leaves = tree_leaves(carry)
    return select(carry, rows.to(leaves[0].device)) if leaves else carry


def join_parts(carries: Sequence[Any]) -> Any:
    """The state of several parts, one after another."""
    return join_all(carries) if carries else None


def split_carry(carry: Any, number: int, group: Group) -> Any:
    """The rows of a carried state that belong to this process, of a state of all rows."""
    leaves = tree_leaves(carry)
    if group.size == 1 or not leaves:
        return carry
    rows = rows_of_rank(len(leaves[0]), number, rank=group.rank, size=group.size)
    return select_rows(carry, rows) if len(rows) else None


def gather_carry(carry: Any, number: int, group: Group) -> Any:
    """In the first process, the carried state of all rows in the order of the batch; None in the others, which must all call
    it. The first process has rows whenever any has."""
    if group.size == 1:
        return carry
    leaves = tree_leaves(carry)
    shapes = group.gather([[list(leaf.shape), str(leaf.dtype).removeprefix("torch.")] for leaf in leaves])
    states = []
    for rank, described in enumerate(shapes):
        received = iter([_from_rank(leaves, index, rank, group, described[index]) for index in range(len(described))])
        if group.leads and described:
            states.append(tree_map(lambda leaf, received=received: next(received), carry))  # type: ignore[misc]
    if not states:
        return None
    num_rows = sum(described[0][0][0] for described in shapes if described)
    ranks = range(group.size)
    order = torch.cat([rows_of_rank(num_rows, number, rank=rank, size=group.size) for rank in ranks])
    return select_rows(join_parts(states), order.argsort())


def _from_rank(leaves: Sequence[Tensor], index: int, rank: int, group: Group, described: Sequence[Any]) -> Tensor:
    """The leaf `index` of a state in the process `rank`, in all processes."""
    if rank == group.rank:
        return group.broadcast_(leaves[index].contiguous(), rank)
    shape, dtype = described
    device = leaves[0].device if leaves else torch.device("cpu")
    return group.broadcast_(torch.empty(shape, dtype=getattr(torch, dtype), device=device), rank)
