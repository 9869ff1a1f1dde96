"""Tracks the memory that torch operations allocate."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records the allocated bytes after every operation in `trace`; memory from before does not count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes, self.trace = 0, list[int]()
        self._storage_bytes: dict[weakref.ref[Any], int] = {}  # of live storages

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under this mode; torch would import its compiler to switch it off, which takes a second."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for output in outputs if isinstance(outputs, list | tuple) else (outputs,):
            if isinstance(output, Tensor) and weakref.ref(storage := output.untyped_storage()) not in self._storage_bytes:
                # a view of an existing tensor takes no memory
                is_view = any(isinstance(arg, Tensor) and arg.untyped_storage() is storage for arg in args)
                self._storage_bytes[weakref.ref(storage, self._free)] = num_bytes = 0 if is_view else storage.nbytes()
                self.live_bytes += num_bytes
        self.trace.append(self.live_bytes)
        return outputs

    def _free(self, storage: weakref.ref[Any]) -> None:
        self.live_bytes -= self._storage_bytes.pop(storage)
