"""Batches in few shapes, for a GPU: what is prepared once per shape, such as a recorded graph, is used again and again.

A sampler is unchanged but for padding: the same examples in the same batches, with columns and rows of padding that no loss
counts. The shapes are found from the batches of the first epochs, so that they are padded little.

Shapes: N batches, K axes (rows, then widths), M shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from weft.data.batch import FULL, crop_batch

if TYPE_CHECKING:
    from weft.data.batching import BatchSampler

MAX_SHAPES = 32
ROW_STEP = 8  # rows are multiples of it: matrix products on a GPU are faster
NUM_SAMPLES, MAX_EPOCHS = 512, 4  # batches, of the first epochs, from which the shapes are found
MAX_CLUSTERS = 256  # different sizes that are merged into shapes; the time is cubic


@runtime_checkable
class Paddable(Protocol):
    """A batch that can be padded without a change of its loss."""

    def sizes(self) -> tuple[int, ...]:
        """Number of rows, then the widths."""

    def padded(self, sizes: Sequence[int]) -> Self:
        """The same batch with these sizes, none of which is smaller than its own. What is added counts nothing."""


P = TypeVar("P", bound=tuple[Any, ...], covariant=True)  # a batch that is Paddable


def _round_up(sizes: np.ndarray, limits: np.ndarray, *, factor: int = 1) -> np.ndarray:
    """Sizes (N, K) with rows as multiples of ROW_STEP times `factor`, and widths as multiples of `factor`, but without padding
    above `limits` (K - 1,): a model may have no more positions."""
    steps = factor * np.array([ROW_STEP] + [1] * len(limits))
    rounded: np.ndarray = -(-sizes // steps) * steps
    rounded[:, 1:] = np.maximum(np.minimum(rounded[:, 1:], limits), sizes[:, 1:])
    return rounded


def positions(sizes: np.ndarray) -> np.ndarray:
    """Number of positions, with padding, of batches of these sizes: (..., K) to (...,)."""
    count: np.ndarray = sizes[..., 0] * sizes[..., 1:].sum(-1)
    return count


def find_shapes(sizes: np.ndarray, limits: np.ndarray, *, max_shapes: int = MAX_SHAPES) -> np.ndarray:
    """At most `max_shapes` shapes (M, K) that cover the batches of `sizes` (N, K), smallest first.

    Greedy: the two shapes whose union adds the fewest positions to the batches that they cover are merged, until few are left.
    """
    factor = 1
    while len(np.unique(_round_up(sizes, limits, factor=factor), axis=0)) > MAX_CLUSTERS:
        factor *= 2
    shapes, counts = np.unique(_round_up(sizes, limits, factor=factor), axis=0, return_counts=True)
    while len(shapes) > max_shapes:
        merged = np.maximum(shapes[:, None], shapes[None])  # (M, M, K)
        costs = counts * positions(shapes)
        added = (counts[:, None] + counts) * positions(merged) - costs[:, None] - costs
        added[np.diag_indices(len(shapes))] = np.iinfo(added.dtype).max
        first, second = sorted(int(index) for index in np.unravel_index(added.argmin(), added.shape))
        shapes[first], counts[first] = merged[first, second], counts[first] + counts[second]
        shapes, counts = np.delete(shapes, second, axis=0), np.delete(counts, second)
    return shapes[np.argsort(positions(shapes), kind="stable")]


def _sampled_places(sampler: BatchSampler[Any]) -> Iterator[tuple[int, int]]:
    """Epoch and index of NUM_SAMPLES batches of the first epoch; if it has fewer, of the next ones as well."""
    num_batches, left = sampler.batches(0), NUM_SAMPLES
    for epoch in range(MAX_EPOCHS):
        indices = np.linspace(0, num_batches - 1, min(num_batches, left)).astype(np.int64)
        yield from ((epoch, index) for index in indices.tolist() if index < sampler.batches(epoch))
        left -= len(indices)
        if not left:
            return


class FewShapes(Generic[P]):
    """A BatchSampler whose batches are those of another one, padded to few shapes. A batch that no shape covers, which only
    later epochs can have, gets rows up to a multiple of ROW_STEP."""

    def __init__(self, sampler: BatchSampler[P], *, max_shapes: int = MAX_SHAPES) -> None:
        self.sampler = sampler
        largest = self._sizes(sampler.largest_batch())
        self.limits = np.array(largest[1:])
        samples = [self._sizes(sampler.batch(*place)) for place in _sampled_places(sampler)]
        self.shapes = find_shapes(np.array([*samples, largest]), self.limits, max_shapes=max_shapes)

    def _sizes(self, batch: Any) -> tuple[int, ...]:
        sizes: tuple[int, ...] = batch.sizes()
        return sizes

    def shape_of(self, sizes: Sequence[int]) -> list[int]:
        """The smallest shape for a batch of these sizes."""
        covers = (self.shapes >= np.array(sizes)).all(1)
        if covers.any():
            return [int(size) for size in self.shapes[covers.argmax()]]
        return [int(size) for size in _round_up(np.array([sizes]), self.limits)[0]]

    @property
    def rows(self) -> int:
        """Rows of an average batch, without padding."""
        return self.sampler.rows

    def batches(self, epoch: int) -> int:
        return self.sampler.batches(epoch)

    def batch(self, epoch: int, index: int) -> P:
        return self._pad(self.sampler.batch(epoch, index))

    def _pad(self, batch: Any) -> P:
        padded: P = batch.padded(self.shape_of(self._sizes(batch)))
        return padded

    def resets_state(self, index: int) -> bool:
        return self.sampler.resets_state(index)

    def largest_batch(self, fraction: Fraction = FULL) -> P:
        return crop_batch(self._pad(self.sampler.largest_batch()), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return self.sampler.describe(epoch, index)
