"""In which order a corpus is read: training batches as pure functions of (seed, epoch, index), evaluation in one pass.

Nothing random is kept: every number comes from `numpy.random.SeedSequence((seed, epoch))`, so a run goes on from
(epoch, index) as if it had never stopped. Running text is trained on as if <s> stood before its first token.

Shapes: B rows, T positions; a row holds T + 1 tokens, the first T are inputs, the last T are targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from weft.data.corpus import Corpus
from weft.data.grouped import Grouped, in_groups
from weft.data.shuffle import Shuffled
from weft.errors import DataError


class Batch(NamedTuple):
    tokens: Tensor  # int64 (B, T + 1)
    keep: Tensor | None  # bool (B, T + 1), False on padding; None where there is none


B = TypeVar("B", bound=tuple[Any, ...])


def changed(batch: B, change: Callable[[Tensor], Tensor]) -> B:
    """The same batch, of whatever kind, with every tensor changed."""
    kind: Any = type(batch)
    new: B = kind._make(None if part is None else change(part) for part in batch)
    return new


Rows = TypeVar("Rows", bound=tuple[Any, ...], covariant=True, default=Batch)


class Order(Protocol[Rows]):
    """Training batches, tuples of tensors (B, ...): the same for the same (epoch, index), whatever was asked for before."""

    @property
    def rows(self) -> int:
        """How many rows a batch has; of lines, on average."""

    def batches(self, epoch: int) -> int:
        """How many there are in an epoch."""

    def batch(self, epoch: int, index: int) -> Rows: ...

    def anew(self, index: int) -> bool:
        """Whether this batch does not go on where the one before it stopped: a carried state is dropped."""

    def largest(self) -> Rows:
        """A batch as large as any: what memory is measured with."""

    def describe(self, epoch: int, index: int) -> str:
        """Which part of the corpus a batch is, for messages."""


def _gather(corpus: Corpus, starts: np.ndarray, length: int) -> Tensor:
    """int64 (B, length): rows of running text from position `starts` (B,) on, where position 0 is the last token of what the
    text comes after, <s> in training; past the end the last token stands again."""
    at = starts[:, None] + np.arange(length) - 1
    rows = corpus.tokens[np.clip(at, 0, len(corpus.tokens) - 1)].astype(np.int64)
    rows[at < 0] = np.array(corpus.opening)[at[at < 0]]
    return torch.from_numpy(rows)


def some(name: str, numbers: np.ndarray) -> str:
    """The first few of `numbers` (N,) after `name`, for messages."""
    shown = ", ".join(str(number) for number in numbers[:8].tolist())
    return f"{name} {shown}{f' and {len(numbers) - 8} more' if len(numbers) > 8 else ''}"


class Windows:
    """Shuffled windows over running text, a stride apart.

    Each epoch shifts the grid by a random phase, so the borders of windows fall elsewhere, and what is left over at the
    two ends (less than two strides in all) is another part each time. Every row is full; the last batch may have fewer.
    """

    def __init__(self, corpus: Corpus, *, window: int, stride: int, rows: int, seed: int) -> None:
        spare = len(corpus.tokens) - window
        if spare < 0:
            raise DataError(
                f"data: {corpus.name} has {len(corpus.tokens)} tokens, fewer than one window of {window};"
                f" give more text, or set data.window to {len(corpus.tokens)} or less"
            )
        self.corpus, self.window, self.stride, self.rows, self.seed = corpus, window, stride, rows, seed
        self.count = max(1, (spare + 1) // stride)
        # the grid may slide from one end to the other: over the epochs every token is a target
        self.phases = spare - stride * (self.count - 1) + 1
        self._drawn: tuple[int, int, Shuffled] | None = None

    def batches(self, epoch: int) -> int:
        return -(-self.count // self.rows)

    def starts(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the position of each row's first input; 0 is <s>."""
        if self._drawn is None or self._drawn[0] != epoch:
            random = np.random.default_rng(np.random.SeedSequence((self.seed, epoch)))
            self._drawn = (epoch, int(random.integers(self.phases)), Shuffled(self.count, random))
        _, phase, shuffled = self._drawn
        numbers = np.arange(index * self.rows, min((index + 1) * self.rows, self.count))
        return phase + self.stride * shuffled(numbers)

    def grid(self, epoch: int) -> np.ndarray:
        """int64 (count,): the same of all windows of an epoch, in the order of the text."""
        return np.sort(np.concatenate([self.starts(epoch, index) for index in range(self.batches(epoch))]))

    def at(self, starts: Sequence[int] | np.ndarray) -> Batch:
        """The windows that begin at these positions."""
        return Batch(_gather(self.corpus, np.asarray(starts), self.window + 1), None)

    def batch(self, epoch: int, index: int) -> Batch:
        return self.at(self.starts(epoch, index))

    def anew(self, index: int) -> bool:
        return True

    def largest(self) -> Batch:
        return self.batch(0, 0)

    def describe(self, epoch: int, index: int) -> str:
        return some(f"{self.corpus.name}, windows of {self.window} tokens from token", self.starts(epoch, index))


class Streams:
    """Running text cut into `rows` streams of equal length, read side by side in order: for truncated back-propagation.

    Fewer than `rows` tokens at the end are left out. The last batch of an epoch may be shorter than the window.
    """

    def __init__(self, corpus: Corpus, *, window: int, rows: int) -> None:
        self.length = len(corpus.tokens) // rows
        if self.length < 1:
            raise DataError(
                f"data: {corpus.name} has {len(corpus.tokens)} tokens, too few for {rows} streams;"
                f" give more text, or fewer rows a batch"
            )
        self.corpus, self.window, self.rows = corpus, window, rows

    def batches(self, epoch: int) -> int:
        return -(-self.length // self.window)

    def batch(self, epoch: int, index: int) -> Batch:
        first = index * self.window
        width = min(self.window, self.length - first)
        return Batch(_gather(self.corpus, first + self.length * np.arange(self.rows), width + 1), None)

    def anew(self, index: int) -> bool:
        return index == 0

    def largest(self) -> Batch:
        return self.batch(0, 0)

    def describe(self, epoch: int, index: int) -> str:
        first = index * self.window
        last = min(first + self.window, self.length) - 1
        return f"{self.corpus.name}, tokens {first} to {last} of each of {self.rows} streams of {self.length}"


def padded(corpus: Corpus, lines: np.ndarray) -> tuple[Tensor, Tensor]:
    """<s>, the line, </s>, right-padded with 0, for each of `lines` (B,): tokens and what to keep, both (B, T + 1)."""
    starts = corpus.line_starts()
    first, lengths = starts[lines], starts[lines + 1] - starts[lines]
    at = np.arange(int(lengths.max()))
    keep = at < lengths[:, None]
    rows = np.where(keep, corpus.tokens[np.where(keep, first[:, None] + at, 0)].astype(np.int64), 0)
    begin = np.full((len(lines), 1), corpus.begin)
    real = np.concatenate([np.ones((len(lines), 1), dtype=bool), keep], axis=1)
    return torch.from_numpy(np.concatenate([begin, rows], axis=1)), torch.from_numpy(real)


class Lines:
    """Every line on its own, in batches of like length."""

    def __init__(self, corpus: Corpus, *, batch_tokens: int, seed: int) -> None:
        # positions of each line: its tokens and </s>
        self.corpus = corpus
        self.groups = Grouped(np.diff(corpus.line_starts()), batch_tokens=batch_tokens, seed=seed)

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return self.groups.rows

    def lines(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the numbers of the lines in a batch, from 0."""
        return self.groups.members(epoch, index)

    def batches(self, epoch: int) -> int:
        return self.groups.batches(epoch)

    def batch(self, epoch: int, index: int) -> Batch:
        return Batch(*padded(self.corpus, self.lines(epoch, index)))

    def anew(self, index: int) -> bool:
        return True

    def largest(self) -> Batch:
        """The longest lines, as many as fit."""
        return Batch(*padded(self.corpus, self.groups.longest()))

    def describe(self, epoch: int, index: int) -> str:
        return some(f"{self.corpus.name}, lines", np.sort(self.lines(epoch, index)) + 1)


class Stretch(NamedTuple):
    """Rows to score: target j of row b is token `at[b] + j` of the corpus; it counts if j >= first[b] and if kept."""

    tokens: Tensor  # int64 (B, T + 1)
    keep: Tensor | None  # bool (B, T + 1)
    first: np.ndarray  # int64 (B,)
    at: np.ndarray  # int64 (B,)
    anew: bool  # whether a carried state is dropped before it
    lines: np.ndarray | None = None  # int64 (B,), which lines these are; None in running text


def strided(corpus: Corpus, *, window: int, stride: int, rows: int) -> Iterator[Stretch]:
    """Running text in windows a stride apart, each counting what the ones before it did not.

    The first counts all it has, every other its last `stride` tokens, with window - stride tokens or more before them.
    The last one is moved back so that it is full, too: no padding.
    """
    total, before = len(corpus.tokens), 1 - len(corpus.opening)  # where the opening begins
    window = min(window, total - before)
    starts = np.append(np.arange(before, total - window, stride), total - window)
    # the end of the window before
    counted = np.concatenate([[0], starts[:-1] + window])
    for start in range(0, len(starts), rows):
        at = starts[start : start + rows]
        yield Stretch(_gather(corpus, at, window + 1), None, counted[start : start + rows] - at, at, True)


def carried(corpus: Corpus, *, window: int, rows: int = 1, warm: int = 0) -> Iterator[Stretch]:
    """Running text in order, `window` tokens at a time, for models that carry a state.

    It is cut into `rows` equal parts that are read side by side, each after the `warm` tokens before it, which don't count.
    """
    total = len(corpus.tokens)
    edges = np.linspace(0, total, rows + 1).astype(np.int64)
    begin = np.maximum(1 - len(corpus.opening), edges[:-1] - warm)
    longest = int((edges[1:] - begin).max())
    for offset in range(0, longest, window):
        at, width = begin + offset, min(window, longest - offset)
        keep = torch.from_numpy(at[:, None] + np.arange(-1, width) < edges[1:, None])
        yield Stretch(_gather(corpus, at, width + 1), keep, np.maximum(0, edges[:-1] - at), at, offset == 0)


def by_length(corpus: Corpus, *, batch_tokens: int) -> Iterator[Stretch]:
    """Every line once, short ones first; rows times positions is at most `batch_tokens` (a longer line comes alone)."""
    starts = corpus.line_starts()
    for lines in in_groups(np.diff(starts), batch_tokens=batch_tokens):
        tokens, keep = padded(corpus, lines)
        yield Stretch(tokens, keep, np.zeros(len(lines), dtype=np.int64), starts[lines], True, lines)
