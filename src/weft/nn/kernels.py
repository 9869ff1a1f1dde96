"""Whether kernels of weft take the place of functions of torch: in training with half precision on a GPU, where elementwise
functions take as long as to read and write their numbers, and a kernel that joins several reads and writes them once.

A compiler joins most of them by itself. Without a compiler, kernels are used in steps that are recorded
(`training/cuda_graphs.py`), where the time that the host takes to start them does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_records: ContextVar[bool] = ContextVar("records", default=False)


@contextmanager
def recorded_kernels() -> Iterator[None]:
    """Context manager of a forward pass that is recorded, or will be."""
    token = _records.set(True)
    try:
        yield
    finally:
        _records.reset(token)


def is_compiled(x: Tensor) -> bool:
    """Whether kernels are used in compiled training: for functions that a compiler does not join well."""
    return torch.compiler.is_compiling() and _trains_in_half_precision(x)


def is_recorded(x: Tensor) -> bool:
    """Whether kernels are used in recorded training that is not compiled."""
    return not torch.compiler.is_compiling() and _records.get() and _trains_in_half_precision(x)


def _trains_in_half_precision(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and torch.is_grad_enabled()
