"""Models without memory: shapes and names of weights that are not initialized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

# functions that set the values of a tensor, their first argument
INITIALIZE = (
    *(Tensor.normal_, Tensor.uniform_),
    *(getattr(init, name) for name in dir(init) if name.endswith("_") and not name.startswith("_")),
)


class _WithoutInit(TorchFunctionMode):
    """Leaves tensors as they are instead of initializing them. On the meta device, random numbers have no effect, but torch
    imports its compiler for them, which takes longer than importing torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in INITIALIZE:
            return args[0] if args else options["tensor"]
        return func(*args, **options)


@contextmanager
def meta_device() -> Iterator[None]:
    """Modules that are built here have weights with shapes and without values."""
    with torch.device("meta"), _WithoutInit():
        yield
