"""A pass over data that the processes of a group share: each computes some batches, then all have all results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from weft.parallel.group import Group

T = TypeVar("T")


def share(batches: Iterable[T], group: Group) -> Iterator[T]:
    """The batches of this process: every `size`-th one, because they are sorted by length."""
    group.begin()
    return islice(batches, group.rank, None, group.size)


def sum_arrays(array: np.ndarray, group: Group) -> np.ndarray:
    """The sum of the arrays of all processes. If each has zeros where others have results, it is exactly what one process
    computes."""
    if group.size > 1:
        import torch

        group.meet()
        group.sum_(torch.from_numpy(array))
    return array


def merge(results: Mapping[int, Any], group: Group) -> dict[int, Any]:
    """The results of all processes by number; each is what JSON can hold."""
    if group.size == 1:
        return dict(results)
    group.meet()
    return {int(number): value for part in group.gather(list(results.items())) for number, value in part}
