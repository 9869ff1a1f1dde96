"""Matrices that the processes of a group exchange, so that each orthogonalizes some of them. Matrix i belongs to process i % W.

Shapes: N matrices, W processes, R rows, C columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.parallel.group import Group
from weft.parallel.shards import rows_of


def gather_matrices(own: Tensor, like: Tensor, group: Group) -> Tensor:
    """All matrices (N, R, C), with the shape of `like`, from those that belong to each process, (N / W, R, C)."""
    per_process = -(-len(like) // group.size)
    sent = own.new_zeros(per_process, *like.shape[1:])
    sent[: len(own)] = own
    received = group.gather_tensor(sent)  # (W, N / W, R, C)
    return received.transpose(0, 1).flatten(0, 1)[: len(like)]


def rows_to_matrices(parts: Tensor, num_rows: int, group: Group) -> Tensor:
    """The whole matrices (N / W, R, C) that belong to this process, from the rows (N, R / W, C) of all matrices that each
    process holds. Each process sends and receives as much as it holds."""
    rows, columns = [count for _, count in rows_of(num_rows, group.size)], parts.size(2)
    owned = _owned(len(parts), group)
    sent = torch.cat([parts[owner :: group.size].reshape(-1) for owner in range(group.size)])
    given = [count * rows[group.rank] * columns for count in owned]
    taken = [owned[group.rank] * count * columns for count in rows]
    received = torch.split(group.exchange(sent, given, taken), taken)
    pieces = [piece.view(owned[group.rank], count, columns) for piece, count in zip(received, rows, strict=True)]
    return torch.cat(pieces, dim=1)


def matrices_to_rows(own: Tensor, like: Tensor, num_rows: int, group: Group) -> Tensor:
    """The inverse of `rows_to_matrices`: the rows of all matrices that this process holds, with the shape of `like`."""
    rows, columns = [count for _, count in rows_of(num_rows, group.size)], like.size(2)
    owned = _owned(len(like), group)
    sent = torch.cat([piece.reshape(-1) for piece in torch.split(own, rows, dim=1)])
    given = [owned[group.rank] * count * columns for count in rows]
    taken = [count * rows[group.rank] * columns for count in owned]
    received = torch.split(group.exchange(sent, given, taken), taken)
    result = torch.empty_like(like)
    for owner, piece in enumerate(received):
        result[owner :: group.size] = piece.view(owned[owner], rows[group.rank], columns)
    return result


def _owned(count: int, group: Group) -> list[int]:
    """The number of matrices that belong to each process."""
    return [len(range(owner, count, group.size)) for owner in range(group.size)]
