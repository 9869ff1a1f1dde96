"""Which rows of a batch each process computes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Rows that one forward pass of a process computes."""

    number: int  # distinguishes the parts of all processes, for the seed of dropout
    rows: Tensor  # int64 (R,): their indices in the batch; empty if there are fewer rows than parts


def parts_of(num_rows: int, micro_batches: int, *, rank: int = 0, size: int = 1) -> list[Part]:
    """The parts of a batch that a process computes: equally many in all processes.

    The batch is divided into micro-batches as in one process. If their number is a multiple of the number of processes, each
    process takes whole micro-batches: nothing can tell the result from that of one process, dropout included. Otherwise all
    processes share each micro-batch. They take every `size`-th row, because batches are sorted by length: all get about as many
    tokens.
    """
    chunks = list(torch.arange(num_rows).chunk(micro_batches))
    if micro_batches % size:
        return [Part(number * size + rank, chunk[rank::size]) for number, chunk in enumerate(chunks)]
    chunks += [chunks[0][:0]] * (-len(chunks) % size)
    return [Part(number, chunks[number]) for number in range(rank, len(chunks), size)]


def rows_of_rank(num_rows: int, micro_batches: int, *, rank: int, size: int) -> Tensor:
    """int64 (R,): all rows of a process, in the order in which it computes them and keeps their state."""
    return torch.cat([part.rows for part in parts_of(num_rows, micro_batches, rank=rank, size=size)])
