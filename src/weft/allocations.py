"""Tracking of the memory that torch operations allocate."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records, after every torch operation, the bytes that were allocated and not freed since the start."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.trace = 0, list[int]()
        self._bytes: dict[weakref.ref[Any], int] = {}  # of each live storage

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for part in outputs if isinstance(outputs, list | tuple) else (outputs,):
            if isinstance(part, Tensor) and weakref.ref(storage := part.untyped_storage()) not in self._bytes:
                # a view of an existing tensor takes no memory
                is_view = any(isinstance(arg, Tensor) and arg.untyped_storage() is storage for arg in args)
                self._bytes[weakref.ref(storage, self._free)] = new = 0 if is_view else storage.nbytes()
                self.now += new
        self.trace.append(self.now)
        return outputs

    def _free(self, storage: weakref.ref[Any]) -> None:
        self.now -= self._bytes.pop(storage)
