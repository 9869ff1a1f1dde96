"""Device and precision of a training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch

from weft.data.batch import map_tensors
from weft.parallel.group import ALONE, Group

B = TypeVar("B", bound=tuple[Any, ...])  # a batch: a tuple of tensors (B, ...) or None


class DeviceConfig(NamedTuple):
    """Device and precision of the computation, and the processes that share it."""

    device: torch.device
    precision: torch.dtype
    group: Group = ALONE  # the processes that train together

    def to_device(self, batch: B) -> B:
        return map_tensors(batch, lambda part: part.to(self.device, non_blocking=True))

    def pin(self, batch: B) -> B:
        """A batch in memory from which a GPU copies while the host goes on; elsewhere the batch itself."""
        if self.device.type != "cuda":
            return batch
        with torch.cuda.device(self.device):  # a thread would open a context on the first GPU
            return map_tensors(batch, lambda part: part.pin_memory())

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)
