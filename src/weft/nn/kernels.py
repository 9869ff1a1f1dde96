"""Whether kernels of weft take the place of functions of torch: if Triton can compile them (`load_kernels`), and where they
are faster.

Those of losses and recurrences always are. The others are used in training with half precision on a GPU, where elementwise
functions take as long as to read and write their numbers, and a kernel that joins several reads and writes them once. A
compiler joins most of them by itself. Without a compiler, kernels are used in steps that are recorded
(`training/cuda_graphs.py`), where the time that the host takes to start them does not count.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

_loaded: dict[str, ModuleType | None] = {}  # the modules that were looked for; None if they cannot be used


def load_kernels(name: Literal["triton_cross_entropy", "triton_scan"]) -> ModuleType | None:
    """The module of `weft.nn` with these kernels; None if Triton is absent or cannot compile them. It is looked for outside of
    compiled code, which it would break; training measures the memory of a batch before it compiles anything."""
    if name not in _loaded and not torch.compiler.is_compiling():
        _loaded[name] = _load(name)
    return _loaded.get(name)


def _load(name: str) -> ModuleType | None:
    try:
        module = import_module(f"weft.nn.{name}")
        module.probe()
    except ImportError:
        return None
    except Exception as error:  # a missing C compiler, an old driver: each raises its own
        warnings.warn(f"Triton cannot compile kernels; training is slower without them: {error}", stacklevel=3)
        return None
    return module


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
