"""Length bucketing: batches of examples of similar length, for lines, labeled texts, tagged sentences and pairs.

Shapes: N examples, B rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from weft.data.batch import FULL, crop_batch
from weft.data.streamed_buckets import Arrange, LineLengths, StreamedPlan

B = TypeVar("B", bound=tuple[Any, ...], covariant=True)  # type of a batch
MAX_STORED = 1 << 22  # examples whose order is stored
POOL_BATCHES = 100  # batches per pool of shuffled examples that is sorted by length


def batch_edges(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Edges from 0 to N that divide `lengths` (N,) into batches: rows * maximum length is at most `batch_tokens`."""
    edges, start = [0], 0
    while start < len(lengths):
        # the first length limits the number of rows
        max_lengths = np.maximum.accumulate(lengths[start : start + max(1, batch_tokens // int(lengths[start]))])
        fits = max_lengths * np.arange(1, len(max_lengths) + 1) <= batch_tokens
        start += max(1, int(np.count_nonzero(fits)))
        edges.append(start)
    return np.asarray(edges)


class StoredPlan(NamedTuple):
    """The batches of an epoch as arrays."""

    order: np.ndarray  # int64 (N,): the examples
    bounds: np.ndarray  # int64 (batches, 2): start and end of each batch in `order`

    @property
    def num_batches(self) -> int:
        return len(self.bounds)

    def members(self, index: int) -> np.ndarray:
        """int64 (B,): indices of the examples in a batch."""
        return self.order[self.bounds[index, 0] : self.bounds[index, 1]]


class LengthBuckets:
    """Every example once per epoch, in batches of similar length: rows * maximum length is at most `batch_tokens`.

    Each epoch shuffles the examples, divides them into pools of about POOL_BATCHES batches, sorts each pool (with `arrange`, by
    default by length), divides it into batches and shuffles these. So each epoch has other batches. An example longer than
    `batch_tokens` is a batch by itself. More than MAX_STORED examples are shuffled in blocks (see `StreamedPlan`), which takes
    no memory per example.
    """

    def __init__(
        self, lengths: np.ndarray | LineLengths, *, batch_tokens: int, seed: int, arrange: Arrange | None = None
    ) -> None:
        self.lengths, self.batch_tokens, self.seed = lengths, batch_tokens, seed
        self.arrange = arrange or (lambda rng, pool: np.argsort(lengths[pool], kind="stable"))
        self._plan: tuple[int, StoredPlan | StreamedPlan] | None = None

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return max(1, int(self.batch_tokens / max(1.0, float(self.lengths.mean()))))

    def batches(self, epoch: int) -> int:
        return self._plan_of(epoch).num_batches

    def members(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): indices of the examples in a batch."""
        return self._plan_of(epoch).members(index)

    def longest_examples(self) -> np.ndarray:
        """int64 (B,): indices of the longest examples, as many as fit into a batch."""
        rows = min(len(self.lengths), max(1, self.batch_tokens // int(self.lengths.max())))
        if isinstance(self.lengths, LineLengths):
            return self.lengths.longest(rows)[0]
        return np.argpartition(-self.lengths, rows - 1)[:rows]

    def _plan_of(self, epoch: int) -> StoredPlan | StreamedPlan:
        """The batches of an epoch; cached for one epoch."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._make_plan(epoch))
        return self._plan[1]

    def _make_plan(self, epoch: int) -> StoredPlan | StreamedPlan:
        pool_size = POOL_BATCHES * self.rows
        if len(self.lengths) > MAX_STORED:
            edges = partial(batch_edges, batch_tokens=self.batch_tokens)
            return StreamedPlan(self.lengths, seed=(self.seed, epoch), pool_size=pool_size, arrange=self.arrange, edges=edges)
        rng = np.random.default_rng(np.random.SeedSequence((self.seed, epoch)))
        order = rng.permutation(len(self.lengths))
        bounds = []
        for start in range(0, len(order), pool_size):
            pool = order[start : start + pool_size]
            pool[:] = pool[self.arrange(rng, pool)]
            edges_of_pool = start + batch_edges(self.lengths[pool], self.batch_tokens)
            bounds.append(np.stack([edges_of_pool[:-1], edges_of_pool[1:]], axis=1))
        return StoredPlan(order, rng.permutation(np.concatenate(bounds)))


class Examples(Protocol[B]):
    """A data set of independent examples: labeled texts, tagged sentences, pairs. Subclasses inherit the defaults."""

    def lengths(self) -> np.ndarray:
        """int64 (N,): number of positions of each example."""

    def batch(self, members: np.ndarray) -> B:
        """The examples with indices `members` (B,)."""

    def loss_count(self, members: np.ndarray) -> int:
        """Number of terms in the mean loss of these examples."""

    def describe(self, members: np.ndarray) -> str:
        """Names of these examples, for messages."""

    def known(self) -> np.ndarray:
        """int64 (M,): indices of examples with a loss, such as texts whose label is in the training data."""
        return np.arange(len(self.lengths()))

    def length_order(self) -> np.ndarray:
        """int64 (N,): indices sorted by length, shortest first."""
        return np.argsort(self.lengths(), kind="stable")

    def tokens(self, members: np.ndarray) -> int:
        """Number of tokens in these examples."""
        return int(self.lengths()[members].sum())

    def largest(self, members: np.ndarray, fraction: Fraction = FULL) -> B:
        """A batch of these examples, the longest ones, padded to the maximum size; its rows are truncated to `fraction` of
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
    """Every example once, shortest first: indices (B,) and batch."""
    for members in example_batches(data, np.arange(len(data.lengths())), batch_tokens=batch_tokens):
        yield members, data.batch(members)


def example_batches(data: Examples[Any], selected: np.ndarray, *, batch_tokens: int) -> Iterator[np.ndarray]:
    """Indices (B,) of batches of similar length from the examples `selected` (M,), shortest first."""
    order = data.length_order()
    order = order[np.isin(order, selected)]
    for start, stop in pairwise(batch_edges(data.lengths()[order], batch_tokens).tolist()):
        yield order[start:stop]


def length_batches(lengths: np.ndarray, *, batch_tokens: int) -> Iterator[np.ndarray]:
    """Indices (B,) of batches of similar length from `lengths` (N,), shortest first."""
    order = np.argsort(lengths, kind="stable")
    for start, stop in pairwise(batch_edges(lengths[order], batch_tokens).tolist()):
        yield order[start:stop]
