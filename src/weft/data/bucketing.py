"""Length bucketing: batches of examples of similar length, for lines, labeled texts, tagged sentences and pairs.

Shapes: N examples, B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from weft.data.batch import FULL, crop_batch

B = TypeVar("B", bound=tuple[Any, ...], covariant=True)  # a batch
POOL_BATCHES = 100  # batches in one pool of shuffled examples, which is sorted by length


def batch_edges(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Edges, from 0 to N, that divide `lengths` (N,) into batches: rows times the longest is at most `batch_tokens`."""
    edges, start = [0], 0
    while start < len(lengths):
        # at most this many rows can fit into the batch
        max_lengths = np.maximum.accumulate(lengths[start : start + max(1, batch_tokens // int(lengths[start]))])
        fits = max_lengths * np.arange(1, len(max_lengths) + 1) <= batch_tokens
        start += max(1, int(np.count_nonzero(fits)))
        edges.append(start)
    return np.asarray(edges)


Arrange = Callable[[np.random.Generator, np.ndarray], np.ndarray]  # from numbers of examples (M,): an order of them (M,)


class LengthBuckets:
    """Every example once per epoch, in batches of similar length: rows times the longest is at most `batch_tokens`.

    Each epoch shuffles the examples, divides them into pools of about POOL_BATCHES batches, arranges each pool (by length, if
    `arrange` is None), divides it into batches and shuffles those, so that the composition of the batches changes, too. An
    example longer than `batch_tokens` is a batch of its own.
    """

    def __init__(self, lengths: np.ndarray, *, batch_tokens: int, seed: int, arrange: Arrange | None = None) -> None:
        self.lengths, self.batch_tokens, self.seed = lengths, batch_tokens, seed
        self.arrange = arrange or (lambda random, part: np.argsort(lengths[part], kind="stable"))
        self._plan: tuple[int, np.ndarray, np.ndarray] | None = None

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return max(1, int(self.batch_tokens / max(1.0, float(self.lengths.mean()))))

    def batches(self, epoch: int) -> int:
        return len(self._plan_of(epoch)[1])

    def members(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the numbers of the examples in a batch, from 0."""
        order, bounds = self._plan_of(epoch)
        return order[bounds[index, 0] : bounds[index, 1]]

    def longest_examples(self) -> np.ndarray:
        """int64 (B,): the longest examples, as many as fit into a batch."""
        rows = min(len(self.lengths), max(1, self.batch_tokens // int(self.lengths.max())))
        return np.argpartition(-self.lengths, rows - 1)[:rows]

    def _plan_of(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples in order, and (batches, 2) the start and end of each batch in it; cached for one epoch."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, *self._make_plan(epoch))
        return self._plan[1:]

    def _make_plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(np.random.SeedSequence((self.seed, epoch)))
        order = random.permutation(len(self.lengths))
        pool = POOL_BATCHES * self.rows
        bounds = []
        for start in range(0, len(order), pool):
            part = order[start : start + pool]
            part[:] = part[self.arrange(random, part)]
            edges = start + batch_edges(self.lengths[part], self.batch_tokens)
            bounds.append(np.stack([edges[:-1], edges[1:]], axis=1))
        return order, random.permutation(np.concatenate(bounds))


class Examples(Protocol[B]):
    """Data that is read example by example: labeled texts, tagged sentences, pairs. Subclasses inherit the defaults."""

    def lengths(self) -> np.ndarray:
        """int64 (N,): the positions of each example."""

    def batch(self, members: np.ndarray) -> B:
        """The examples with these numbers."""

    def loss_count(self, members: np.ndarray) -> int:
        """The divisor of the mean loss of these examples."""

    def describe(self, members: np.ndarray) -> str:
        """The examples for messages."""

    def known(self) -> np.ndarray:
        """int64 (M,): the examples that have a loss, such as texts whose label is in the training data."""
        return np.arange(len(self.lengths()))

    def length_order(self) -> np.ndarray:
        """int64 (N,): an order in which neighbors have similar lengths, short ones first."""
        return np.argsort(self.lengths(), kind="stable")

    def tokens(self, members: np.ndarray) -> int:
        """Number of tokens that are read for these examples."""
        return int(self.lengths()[members].sum())

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> B:
        """A batch of these examples, the longest ones, that is as large as any can be; its rows are shortened to `fraction` of
        their positions."""
        return crop_batch(self.batch(members), fraction)


class ExampleBatchSampler(Generic[B]):
    """A BatchSampler of independent examples in batches of similar length."""

    def __init__(self, data: Examples[B], *, batch_tokens: int, seed: int, arrange: Arrange | None = None) -> None:
        self.data = data
        self.buckets = LengthBuckets(data.lengths(), batch_tokens=batch_tokens, seed=seed, arrange=arrange)

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return self.buckets.rows

    def batches(self, epoch: int) -> int:
        return self.buckets.batches(epoch)

    def batch(self, epoch: int, index: int) -> B:
        return self.data.batch(self.buckets.members(epoch, index))

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = FULL) -> B:
        return self.data.largest(self.buckets.longest_examples(), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return self.data.describe(self.buckets.members(epoch, index))


def by_length(data: Examples[B], *, batch_tokens: int) -> Iterator[tuple[np.ndarray, B]]:
    """Every example once, short ones first: batches with the numbers (B,) of their examples."""
    for members in example_batches(data, np.arange(len(data.lengths())), batch_tokens=batch_tokens):
        yield members, data.batch(members)


def example_batches(data: Examples[Any], selected: np.ndarray, *, batch_tokens: int) -> Iterator[np.ndarray]:
    """The selected examples (M,), short ones first, in batches of similar length: int64 (B,), their numbers."""
    order = data.length_order()
    order = order[np.isin(order, selected)]
    for low, high in pairwise(batch_edges(data.lengths()[order], batch_tokens).tolist()):
        yield order[low:high]


def length_batches(lengths: np.ndarray, *, batch_tokens: int) -> Iterator[np.ndarray]:
    """All examples, short ones first, in batches of similar length: int64 (B,), their numbers."""
    order = np.argsort(lengths, kind="stable")
    for low, high in pairwise(batch_edges(lengths[order], batch_tokens).tolist()):
        yield order[low:high]
