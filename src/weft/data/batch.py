"""Operations on batches of any type: named tuples of tensors (B, ...) or None."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

B = TypeVar("B", bound=tuple[Any, ...])
FULL = Fraction(1)  # all positions


def as_tensor(array: np.ndarray) -> Tensor:
    """`torch.from_numpy`; torch is imported for the first batch, not with this module."""
    import torch

    return torch.from_numpy(array)


def map_tensors(batch: B, function: Callable[[Tensor], Tensor]) -> B:
    """Apply `function` to every tensor of a batch."""
    batch_type: Any = type(batch)
    result: B = batch_type._make(None if part is None else function(part) for part in batch)
    return result


def crop_tensor(tensor: Tensor, fraction: Fraction) -> Tensor:
    """The first `fraction` of the positions of a tensor (B, T, ...), at least two: an input and its target."""
    return tensor[:, : max(2, math.ceil(tensor.size(1) * fraction))]


def crop_batch(batch: B, fraction: Fraction) -> B:
    """A batch with the first `fraction` of the positions of every tensor (B, T, ...); tensors (B,) are unchanged."""
    return map_tensors(batch, lambda part: part if part.dim() == 1 else crop_tensor(part, fraction))
