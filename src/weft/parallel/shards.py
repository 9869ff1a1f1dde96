"""Tensors of which each process may hold some rows: weights, optimizer state and averages under FSDP2."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

PLAIN = (Tensor, nn.Parameter)  # types of tensors that are not sharded: the check of a protocol takes long


class LocalPart(NamedTuple):
    """The part of a tensor in this process: rows [first_row, first_row + len(tensor)) of a tensor of `shape`.

    A tensor that is not sharded is its own part, and every process has all of it; a scalar has no rows and first_row 0.
    """

    tensor: Tensor
    first_row: int
    shape: tuple[int, ...]


@runtime_checkable
class HasMesh(Protocol):
    """What tells a DTensor from a plain tensor, without importing torch.distributed."""

    @property
    def device_mesh(self) -> Any:
        """The processes that hold the tensor."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process holds only some rows of the tensor."""
    return type(tensor) not in PLAIN and isinstance(tensor, HasMesh)


def rows_of(num_rows: int, size: int) -> list[tuple[int, int]]:
    """First row and number of rows of each process, as torch.chunk divides them: the last ones may have none."""
    step = -(-num_rows // size)
    starts = [min(num_rows, rank * step) for rank in range(size)]
    return [(start, min(step, num_rows - start)) for start in starts]


def local_part(tensor: Tensor) -> LocalPart:
    """The rows of a tensor that this process holds."""
    if not is_sharded(tensor):
        return LocalPart(tensor, 0, tuple(tensor.shape))
    sharded: Any = tensor
    mesh = sharded.device_mesh
    first_row, _ = rows_of(tensor.size(0), mesh.size())[mesh.get_local_rank()]
    return LocalPart(sharded.to_local(), first_row, tuple(tensor.shape))


def local(tensor: Tensor) -> Tensor:
    """The rows that this process holds, as a plain tensor that shares their memory."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():  # otherwise it is a view with a history
        rows: Tensor = sharded.to_local()
    return rows


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all processes, which must all call it; a tensor that is not sharded is returned as it
    is."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    gathered: Tensor = sharded.full_tensor()
    return gathered


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor that every process has, divided as `like` is; no exchange is needed. A tensor that is already divided is
    returned as it is."""
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    part, first_row, _ = local_part(like)
    return from_rows(tensor[first_row : first_row + len(part)], like)


def from_rows(rows: Tensor, like: Tensor) -> Tensor:
    """A copy of the rows of this process as a tensor that is divided as `like` is; no exchange is needed."""
    part = local(like)
    return as_part(rows.to(part.device, part.dtype, copy=True), like)


def as_part(rows: Tensor, like: Tensor) -> Tensor:
    """The rows of this process as a tensor that is divided as `like` is and shares their memory; no exchange is needed. If
    `like` is not sharded, they are the tensor."""
    if not is_sharded(like):
        return rows
    from torch.distributed.tensor import DTensor

    sharded: Any = like
    shape = tuple(like.shape)
    result: Tensor = DTensor.from_local(
        rows,
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )
    return result
