"""Examples of like length together: the order of lines, labelled texts and tagged sentences.

Shapes: N examples, B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from weft.data.batch import WHOLE, cropped

B = TypeVar("B", bound=tuple[Any, ...], covariant=True)  # a batch
POOL_BATCHES = 100  # batches that are filled from one stretch of the shuffled examples, sorted by length


def batch_edges(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Where to cut `lengths` (N,) so that rows times the longest is at most `most`: edges from 0 to N."""
    edges, at = [0], 0
    while at < len(lengths):
        # no more rows than this can fit, however long they are
        near = np.maximum.accumulate(lengths[at : at + max(1, batch_tokens // int(lengths[at]))])
        fits = near * np.arange(1, len(near) + 1) <= batch_tokens
        at += max(1, int(np.count_nonzero(fits)))
        edges.append(at)
    return np.asarray(edges)


Arrange = Callable[[np.random.Generator, np.ndarray], np.ndarray]  # some examples' numbers (M,): an order of them (M,)


class LengthBuckets:
    """Every example once an epoch, in batches of like length: rows times the longest is at most `batch_tokens`.

    Each epoch shuffles the examples, arranges each stretch of about POOL batches, by length unless told otherwise, cuts it into
    batches and shuffles these: who is with whom changes too. An example longer than `batch_tokens` is a batch of its own.
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

    def max_length(self) -> np.ndarray:
        """int64 (B,): the longest examples, as many as fit into a batch."""
        rows = min(len(self.lengths), max(1, self.batch_tokens // int(self.lengths.max())))
        return np.argpartition(-self.lengths, rows - 1)[:rows]

    def _plan_of(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples in order, and (batches, 2) where each batch starts and ends in it; the last epoch's is kept."""
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
    """Labelled texts, tagged sentences, pairs: whatever is read example by example. What most have in common is written here:
    classes of examples inherit it."""

    def lengths(self) -> np.ndarray:
        """int64 (N,): the positions of each example."""

    def batch(self, members: np.ndarray) -> B:
        """The examples of these numbers."""

    def counted(self, members: np.ndarray) -> int:
        """What the loss of these is divided by."""

    def describe(self, members: np.ndarray) -> str:
        """Which they are, for messages."""

    def known(self) -> np.ndarray:
        """int64 (M,): those that have a loss, such as texts with a label that training saw."""
        return np.arange(len(self.lengths()))

    def arranged(self) -> np.ndarray:
        """int64 (N,): an order in which neighbors are of like length, the short ones first."""
        return np.argsort(self.lengths(), kind="stable")

    def tokens(self, members: np.ndarray) -> int:
        """How many tokens are read of these."""
        return int(self.lengths()[members].sum())

    def largest(self, members: np.ndarray, fraction: Fraction = WHOLE) -> B:
        """A batch of as many as these, the longest, that is as large as any can be; or its rows shortened to `share` of their
        positions."""
        return cropped(self.batch(members), fraction)


class ExampleBatchSampler(Generic[B]):
    """Examples that stand by themselves, in batches of like length: an Order."""

    def __init__(self, data: Examples[B], *, batch_tokens: int, seed: int, arrange: Arrange | None = None) -> None:
        self.data = data
        self.groups = LengthBuckets(data.lengths(), batch_tokens=batch_tokens, seed=seed, arrange=arrange)

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return self.groups.rows

    def batches(self, epoch: int) -> int:
        return self.groups.batches(epoch)

    def batch(self, epoch: int, index: int) -> B:
        return self.data.batch(self.groups.members(epoch, index))

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = WHOLE) -> B:
        return self.data.largest(self.groups.max_length(), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return self.data.describe(self.groups.members(epoch, index))


def by_length(data: Examples[B], *, batch_tokens: int) -> Iterator[tuple[np.ndarray, B]]:
    """Every example once, short ones first: the numbers (B,) of those in the batch, and the batch."""
    for members in alike(data, np.arange(len(data.lengths())), batch_tokens=batch_tokens):
        yield members, data.batch(members)


def alike(data: Examples[Any], some: np.ndarray, *, batch_tokens: int) -> Iterator[np.ndarray]:
    """Some examples (M,) once each, short ones first: int64 (B,), the numbers of those that are read together."""
    order = data.arranged()
    order = order[np.isin(order, some)]
    for low, high in pairwise(batch_edges(data.lengths()[order], batch_tokens).tolist()):
        yield order[low:high]


def in_groups(lengths: np.ndarray, *, batch_tokens: int) -> Iterator[np.ndarray]:
    """Every example once, short ones first: int64 (B,), the numbers of those that are read together."""
    order = np.argsort(lengths, kind="stable")
    for low, high in pairwise(batch_edges(lengths[order], batch_tokens).tolist()):
        yield order[low:high]
