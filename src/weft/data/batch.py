"""Batches of any kind: tuples of tensors with rows first, None where a part is not there."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

B = TypeVar("B", bound=tuple[Any, ...])
WHOLE = Fraction(1)


def as_tensor(array: np.ndarray) -> Tensor:
    """The same numbers, for a network: torch is imported when the first batch is made."""
    import torch

    return torch.from_numpy(array)


def changed(batch: B, change: Callable[[Tensor], Tensor]) -> B:
    """The same batch, of whatever kind, with every tensor changed."""
    kind: Any = type(batch)
    new: B = kind._make(None if part is None else change(part) for part in batch)
    return new


def crop(tensor: Tensor, fraction: Fraction) -> Tensor:
    """(B, T, ...): the first `share` of the positions, two at least: an input, and what comes after it."""
    return tensor[:, : max(2, math.ceil(tensor.size(1) * fraction))]


def cropped(batch: B, fraction: Fraction) -> B:
    """Of every tensor (B, T, ...) the first `share` of its positions; a tensor (B,) stays as it is."""
    return changed(batch, lambda part: part if part.dim() == 1 else crop(part, fraction))
