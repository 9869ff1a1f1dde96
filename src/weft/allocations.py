"""What operations of torch allocate."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes, after every operation of torch, the bytes of all that was allocated since and is not freed yet."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.trace = 0, list[int]()
        self._bytes: dict[weakref.ref[Any], int] = {}  # of each storage that was seen and still is

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for part in found if isinstance(found, list | tuple) else (found,):
            if isinstance(part, Tensor) and weakref.ref(storage := part.untyped_storage()) not in self._bytes:
                # a view of what was there before takes nothing
                old = any(isinstance(given, Tensor) and given.untyped_storage() is storage for given in args)
                self._bytes[weakref.ref(storage, self._let_go)] = held = 0 if old else storage.nbytes()
                self.now += held
        self.trace.append(self.now)
        return found

    def _let_go(self, storage: weakref.ref[Any]) -> None:
        self.now -= self._bytes.pop(storage)
