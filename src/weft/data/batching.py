"""In which order a corpus is read: training batches as pure functions of (seed, epoch, index), evaluation in one pass.

Nothing random is kept: every number comes from `numpy.random.SeedSequence((seed, epoch))`, so a run goes on from
(epoch, index) as if it had never stopped. Running text is trained on as if <s> stood before its first token.

Shapes: B rows, T positions; a row holds T + 1 tokens, the first T are inputs, the last T are targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from typing_extensions import TypeVar

from weft.data.batch import WHOLE, as_tensor, cropped
from weft.data.batch import changed as changed
from weft.data.bucketing import Examples, LengthBuckets, in_groups
from weft.data.corpus import Corpus
from weft.data.shuffle import Permutation
from weft.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    tokens: Tensor  # int64 (B, T + 1)
    token_mask: Tensor | None  # bool (B, T + 1), False on padding; None where there is none


Rows = TypeVar("Rows", bound=tuple[Any, ...], covariant=True, default=Batch)


class BatchSampler(Protocol[Rows]):
    """Training batches, tuples of tensors (B, ...): the same for the same (epoch, index), whatever was asked for before."""

    @property
    def rows(self) -> int:
        """How many rows a batch has; of lines, on average."""

    def batches(self, epoch: int) -> int:
        """How many there are in an epoch."""

    def batch(self, epoch: int, index: int) -> Rows: ...

    def resets_state(self, index: int) -> bool:
        """Whether this batch does not go on where the one before it stopped: a carried state is dropped."""

    def largest_batch(self, fraction: Fraction = WHOLE) -> Rows:
        """A batch as large as any, or its rows shortened to `share` of their positions: what memory is measured with."""

    def describe(self, epoch: int, index: int) -> str:
        """Which part of the corpus a batch is, for messages."""


def _slice(corpus: Corpus, starts: np.ndarray, length: int) -> np.ndarray:
    """int64 (B, length): rows of running text from position `starts` (B,) on, where position 0 is the last token of what the
    text comes after, <s> in training; past the end the last token stands again."""
    at = starts[:, None] + np.arange(length) - 1
    rows = corpus.tokens[np.clip(at, 0, len(corpus.tokens) - 1)].astype(np.int64)
    rows[at < 0] = np.array(corpus.bos_ids)[at[at < 0]]
    found: np.ndarray = rows
    return found


def preview(name: str, numbers: np.ndarray) -> str:
    """The first few of `numbers` (N,) after `name`, for messages."""
    shown = ", ".join(str(number) for number in numbers[:8].tolist())
    return f"{name} {shown}{f' and {len(numbers) - 8} more' if len(numbers) > 8 else ''}"


class Windows:
    """Shuffled windows over running text, a stride apart.

    Each epoch shifts the grid by a random phase, so the borders of windows fall elsewhere, and what is left over at the
    two ends (less than two strides in all) is another part each time. Every row is full; the last batch may have fewer.
    """

    def __init__(self, corpus: Corpus, *, context_length: int, stride: int, rows: int, seed: int) -> None:
        spare = len(corpus.tokens) - context_length
        if spare < 0:
            raise DataError(
                "data",
                f"{corpus.name} has {len(corpus.tokens)} tokens, fewer than one window of {context_length}",
                f"give more text, or set data.context_length to {len(corpus.tokens)} or less",
            )
        self.corpus, self.context_length, self.stride, self.rows, self.seed = corpus, context_length, stride, rows, seed
        self.count = max(1, (spare + 1) // stride)
        # the grid may slide from one end to the other: over the epochs every token is a target
        self.phases = spare - stride * (self.count - 1) + 1
        self._drawn: tuple[int, int, Permutation] | None = None

    def batches(self, epoch: int) -> int:
        return -(-self.count // self.rows)

    def starts(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the position of each row's first input; 0 is <s>."""
        if self._drawn is None or self._drawn[0] != epoch:
            random = np.random.default_rng(np.random.SeedSequence((self.seed, epoch)))
            self._drawn = (epoch, int(random.integers(self.phases)), Permutation(self.count, random))
        _, phase, shuffled = self._drawn
        numbers = np.arange(index * self.rows, min((index + 1) * self.rows, self.count))
        return phase + self.stride * shuffled(numbers)

    def grid(self, epoch: int) -> np.ndarray:
        """int64 (count,): the same of all windows of an epoch, in the order of the text."""
        return np.sort(np.concatenate([self.starts(epoch, index) for index in range(self.batches(epoch))]))

    def rows_at(self, starts: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64 (B, T + 1): the tokens of the windows that begin at these positions."""
        return _slice(self.corpus, np.asarray(starts), self.context_length + 1)

    def at(self, starts: Sequence[int] | np.ndarray) -> Batch:
        """The windows that begin at these positions."""
        return Batch(as_tensor(self.rows_at(starts)), None)

    def batch(self, epoch: int, index: int) -> Batch:
        return self.at(self.starts(epoch, index))

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = WHOLE) -> Batch:
        return cropped(self.batch(0, 0), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return preview(f"{self.corpus.name}, windows of {self.context_length} tokens from token", self.starts(epoch, index))


class Streams:
    """Running text cut into `rows` streams of equal length, read side by side in order: for truncated back-propagation.

    Fewer than `rows` tokens at the end are left out. The last batch of an epoch may be shorter than the window.
    """

    def __init__(self, corpus: Corpus, *, context_length: int, rows: int) -> None:
        self.length = len(corpus.tokens) // rows
        if self.length < 1:
            raise DataError(
                "data",
                f"{corpus.name} has {len(corpus.tokens)} tokens, too few for {rows} streams",
                "give more text, or fewer rows a batch",
            )
        self.corpus, self.context_length, self.rows = corpus, context_length, rows

    def batches(self, epoch: int) -> int:
        return -(-self.length // self.context_length)

    def batch(self, epoch: int, index: int) -> Batch:
        first = index * self.context_length
        width = min(self.context_length, self.length - first)
        rows = _slice(self.corpus, first + self.length * np.arange(self.rows), width + 1)
        return Batch(as_tensor(rows), None)

    def resets_state(self, index: int) -> bool:
        return index == 0

    def largest_batch(self, fraction: Fraction = WHOLE) -> Batch:
        return cropped(self.batch(0, 0), fraction)

    def describe(self, epoch: int, index: int) -> str:
        first = index * self.context_length
        last = min(first + self.context_length, self.length) - 1
        return f"{self.corpus.name}, tokens {first} to {last} of each of {self.rows} streams of {self.length}"


def padded_rows(corpus: Corpus, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """<s>, the line, </s>, right-padded with 0, for each of `lines` (B,): tokens and what to keep, both (B, T + 1)."""
    starts = corpus.line_starts()
    first, lengths = starts[lines], starts[lines + 1] - starts[lines]
    at = np.arange(int(lengths.max()))
    token_mask = at < lengths[:, None]
    rows = np.where(token_mask, corpus.tokens[np.where(token_mask, first[:, None] + at, 0)].astype(np.int64), 0)
    begin = np.full((len(lines), 1), corpus.bos_id)
    real = np.concatenate([np.ones((len(lines), 1), dtype=bool), token_mask], axis=1)
    return np.concatenate([begin, rows], axis=1), real


def pad_lines(corpus: Corpus, lines: np.ndarray) -> tuple[Tensor, Tensor]:
    """The same as tensors."""
    rows, token_mask = padded_rows(corpus, lines)
    return as_tensor(rows), as_tensor(token_mask)


@dataclass(frozen=True)
class LineExamples(Examples[Batch]):
    """Lines of a corpus, each by itself."""

    corpus: Corpus

    def lengths(self) -> np.ndarray:
        """int64 (N,): the tokens of each line, and </s>."""
        return np.diff(self.corpus.line_starts())

    def batch(self, members: np.ndarray) -> Batch:
        return Batch(*pad_lines(self.corpus, members))

    def counted(self, members: np.ndarray) -> int:
        return int(self.lengths()[members].sum())

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, lines", np.sort(members) + 1)


class Lines:
    """Every line on its own, in batches of like length."""

    def __init__(self, corpus: Corpus, *, batch_tokens: int, seed: int) -> None:
        self.corpus, self.data = corpus, LineExamples(corpus)
        self.groups = LengthBuckets(self.data.lengths(), batch_tokens=batch_tokens, seed=seed)

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
        return self.data.batch(self.lines(epoch, index))

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = WHOLE) -> Batch:
        """The longest lines, as many as fit."""
        return self.data.largest(self.groups.max_length(), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return self.data.describe(self.lines(epoch, index))


class ScoringWindow(NamedTuple):
    """Rows to score: target j of row b is token `at[b] + j` of the corpus; it counts if j >= first[b] and if kept."""

    tokens: np.ndarray  # int64 (B, T + 1)
    token_mask: np.ndarray | None  # bool (B, T + 1)
    first: np.ndarray  # int64 (B,)
    start: np.ndarray  # int64 (B,)
    resets_state: bool  # whether a carried state is dropped before it
    lines: np.ndarray | None = None  # int64 (B,), which lines these are; None in running text


@dataclass(frozen=True)
class WindowExamples(Examples[Batch]):
    """Running text in windows a stride apart, each counting what the ones before it did not.

    The first counts all it has, every other its last `stride` tokens, with window - stride tokens or more before them.
    The last one is moved back so that it is full, too: no padding.
    """

    corpus: Corpus
    window: int
    stride: int

    @cached_property
    def size(self) -> int:
        """Tokens of each window: all there are, where they are fewer."""
        return min(self.window, len(self.corpus.tokens) - self._before)

    @property
    def _before(self) -> int:
        """Where the opening begins."""
        return 1 - len(self.corpus.bos_ids)

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 (N,): where each window begins."""
        last = len(self.corpus.tokens) - self.size
        return np.append(np.arange(self._before, last, self.stride), last)

    @cached_property
    def first(self) -> np.ndarray:
        """int64 (N,): the first target of each that counts."""
        # the end of the window before
        counted = np.concatenate([[0], self.starts[:-1] + self.size])
        first: np.ndarray = counted - self.starts
        return first

    def lengths(self) -> np.ndarray:
        return np.full(len(self.starts), self.size)

    def rows(self, members: np.ndarray) -> np.ndarray:
        """int64 (B, T + 1): the tokens of these windows."""
        return _slice(self.corpus, self.starts[members], self.size + 1)

    def batch(self, members: np.ndarray) -> Batch:
        counts = np.arange(-1, self.size) >= self.first[members][:, None]
        counts[:, 0] = True
        return Batch(as_tensor(self.rows(members)), as_tensor(counts))

    def counted(self, members: np.ndarray) -> int:
        return int((self.size - self.first[members]).sum())

    def tokens(self, members: np.ndarray) -> int:
        """Those that no other window has read."""
        return self.counted(members)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, windows of {self.size} tokens from token", self.starts[members])


def sliding_windows(corpus: Corpus, *, context_length: int, stride: int, rows: int) -> Iterator[ScoringWindow]:
    """Running text in windows a stride apart, each counting what the ones before it did not: the last `stride` tokens."""
    data = WindowExamples(corpus, context_length, stride)
    every = np.arange(len(data.starts))
    for members in (every[low : low + rows] for low in range(0, len(every), rows)):
        yield ScoringWindow(data.rows(members), None, data.first[members], data.starts[members], True)


def carried_windows(corpus: Corpus, *, context_length: int, rows: int = 1, warmup: int = 0) -> Iterator[ScoringWindow]:
    """Running text in order, `window` tokens at a time, for models that carry a state.

    It is cut into `rows` equal parts that are read side by side, each after the `warm` tokens before it, which don't count.
    """
    total = len(corpus.tokens)
    edges = np.linspace(0, total, rows + 1).astype(np.int64)
    begin = np.maximum(1 - len(corpus.bos_ids), edges[:-1] - warmup)
    max_length = int((edges[1:] - begin).max())
    for offset in range(0, max_length, context_length):
        at, width = begin + offset, min(context_length, max_length - offset)
        token_mask = at[:, None] + np.arange(-1, width) < edges[1:, None]
        yield ScoringWindow(_slice(corpus, at, width + 1), token_mask, np.maximum(0, edges[:-1] - at), at, offset == 0)


def by_length(corpus: Corpus, *, batch_tokens: int) -> Iterator[ScoringWindow]:
    """Every line once, short ones first; rows times positions is at most `batch_tokens` (a longer line comes alone)."""
    starts = corpus.line_starts()
    for lines in in_groups(np.diff(starts), batch_tokens=batch_tokens):
        tokens, token_mask = padded_rows(corpus, lines)
        yield ScoringWindow(tokens, token_mask, np.zeros(len(lines), dtype=np.int64), starts[lines], True, lines)
