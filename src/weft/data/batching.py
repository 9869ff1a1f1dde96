"""Batches of a corpus: training batches as pure functions of (seed, epoch, index), evaluation batches in one pass.

No random state is stored: all randomness comes from `numpy.random.SeedSequence((seed, epoch))`, so a resumed run continues at
(epoch, index) exactly as an uninterrupted one. In training, <s> precedes the first token of running text.

Shapes: B rows, T positions; a row has T + 1 tokens, of which the first T are inputs and the last T are targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from typing_extensions import TypeVar

from weft.data.batch import FULL, as_tensor, crop_batch
from weft.data.batch import map_tensors as map_tensors
from weft.data.bucketing import Examples, LengthBuckets, length_batches
from weft.data.corpus import Corpus
from weft.data.shuffle import Permutation
from weft.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    tokens: Tensor  # int64 (B, T + 1)
    token_mask: Tensor | None  # bool (B, T + 1), False on padding; None without padding


Rows = TypeVar("Rows", bound=tuple[Any, ...], covariant=True, default=Batch)


class BatchSampler(Protocol[Rows]):
    """Training batches, tuples of tensors (B, ...). A batch depends only on (epoch, index), not on earlier calls."""

    @property
    def rows(self) -> int:
        """Rows per batch; an average if batches differ."""

    def batches(self, epoch: int) -> int:
        """Number of batches in an epoch."""

    def batch(self, epoch: int, index: int) -> Rows: ...

    def resets_state(self, index: int) -> bool:
        """Whether this batch does not continue the previous one, so that a carried state is reset."""

    def largest_batch(self, fraction: Fraction = FULL) -> Rows:
        """A batch of the maximum size, to measure memory with; its rows are shortened to `fraction` of their positions."""

    def describe(self, epoch: int, index: int) -> str:
        """The part of the corpus that is in a batch, for messages."""


def _slice(corpus: Corpus, starts: np.ndarray, length: int) -> np.ndarray:
    """int64 (B, length): rows of running text from the positions `starts` (B,). Position 0 is the last token that precedes the
    text, <s> in training. Past the end, the last token is repeated."""
    positions = starts[:, None] + np.arange(length) - 1
    rows: np.ndarray = corpus.tokens[np.clip(positions, 0, len(corpus.tokens) - 1)].astype(np.int64)
    rows[positions < 0] = np.array(corpus.bos_ids)[positions[positions < 0]]
    return rows


def preview(name: str, numbers: np.ndarray) -> str:
    """`name` and the first few of `numbers` (N,), for messages."""
    first = ", ".join(str(number) for number in numbers[:8].tolist())
    return f"{name} {first}{f' and {len(numbers) - 8} more' if len(numbers) > 8 else ''}"


class Windows:
    """Shuffled windows over running text, a stride apart.

    Each epoch shifts the grid by a random phase, so that windows start elsewhere and the unused tokens at the two ends (less
    than two strides in total) differ. Every row is full; the last batch may have fewer rows.
    """

    def __init__(self, corpus: Corpus, *, context_length: int, stride: int, rows: int, seed: int) -> None:
        spare = len(corpus.tokens) - context_length
        if spare < 0:
            count = len(corpus.tokens)
            problem = f"{corpus.name} has only {count} token{'' if count == 1 else 's'}"
            raise DataError("data.context_length", problem, f"use more text or a context_length of at most {count}")
        self.corpus, self.context_length, self.stride, self.rows, self.seed = corpus, context_length, stride, rows, seed
        self.count = max(1, (spare + 1) // stride)
        # the grid can shift from one end to the other, so that over the epochs every token is a target
        self.phases = spare - stride * (self.count - 1) + 1
        self._epoch_order: tuple[int, int, Permutation] | None = None

    def batches(self, epoch: int) -> int:
        return -(-self.count // self.rows)

    def starts(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the position of each row's first input; 0 is <s>."""
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            random = np.random.default_rng(np.random.SeedSequence((self.seed, epoch)))
            self._epoch_order = (epoch, int(random.integers(self.phases)), Permutation(self.count, random))
        _, phase, permutation = self._epoch_order
        numbers = np.arange(index * self.rows, min((index + 1) * self.rows, self.count))
        return phase + self.stride * permutation(numbers)

    def grid(self, epoch: int) -> np.ndarray:
        """int64 (count,): the starts of all windows of an epoch, in the order of the text."""
        return np.sort(np.concatenate([self.starts(epoch, index) for index in range(self.batches(epoch))]))

    def rows_at(self, starts: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64 (B, T + 1): the tokens of the windows that start at these positions."""
        return _slice(self.corpus, np.asarray(starts), self.context_length + 1)

    def batch_at(self, starts: Sequence[int] | np.ndarray) -> Batch:
        """The windows that start at these positions."""
        return Batch(as_tensor(self.rows_at(starts)), None)

    def batch(self, epoch: int, index: int) -> Batch:
        return self.batch_at(self.starts(epoch, index))

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = FULL) -> Batch:
        return crop_batch(self.batch(0, 0), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return preview(f"{self.corpus.name}, windows of {self.context_length} tokens from token", self.starts(epoch, index))


class Streams:
    """Running text divided into `rows` streams of equal length that are read in parallel and in order, for truncated
    backpropagation through time.

    Fewer than `rows` tokens at the end are unused. The last batch of an epoch may be shorter than the context length.
    """

    def __init__(self, corpus: Corpus, *, context_length: int, rows: int) -> None:
        self.length = len(corpus.tokens) // rows
        if self.length < 1:
            problem = f"{corpus.name} has only {len(corpus.tokens)} tokens, too few for {rows} streams"
            raise DataError("train.batch_tokens", problem, "use more text or smaller batches")
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

    def largest_batch(self, fraction: Fraction = FULL) -> Batch:
        return crop_batch(self.batch(0, 0), fraction)

    def describe(self, epoch: int, index: int) -> str:
        first = index * self.context_length
        last = min(first + self.context_length, self.length) - 1
        return f"{self.corpus.name}, tokens {first} to {last} of each of {self.rows} streams of {self.length}"


def padded_rows(corpus: Corpus, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """<s>, the line and </s>, right-padded with 0, for each of `lines` (B,): tokens and token mask, both (B, T + 1)."""
    starts = corpus.line_starts()
    first, lengths = starts[lines], starts[lines + 1] - starts[lines]
    positions = np.arange(int(lengths.max()))
    is_token = positions < lengths[:, None]
    rows = np.where(is_token, corpus.tokens[np.where(is_token, first[:, None] + positions, 0)].astype(np.int64), 0)
    bos = np.full((len(lines), 1), corpus.bos_id)
    token_mask = np.concatenate([np.ones((len(lines), 1), dtype=bool), is_token], axis=1)
    return np.concatenate([bos, rows], axis=1), token_mask


def pad_lines(corpus: Corpus, lines: np.ndarray) -> tuple[Tensor, Tensor]:
    """`padded_rows` as tensors."""
    rows, token_mask = padded_rows(corpus, lines)
    return as_tensor(rows), as_tensor(token_mask)


@dataclass(frozen=True)
class LineExamples(Examples[Batch]):
    """Lines of a corpus as separate examples."""

    corpus: Corpus

    def lengths(self) -> np.ndarray:
        """int64 (N,): the tokens of each line, with </s>."""
        return np.diff(self.corpus.line_starts())

    def batch(self, members: np.ndarray) -> Batch:
        return Batch(*pad_lines(self.corpus, members))

    def loss_count(self, members: np.ndarray) -> int:
        return int(self.lengths()[members].sum())

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, lines", np.sort(members) + 1)


class Lines:
    """Separate lines in batches of similar length."""

    def __init__(self, corpus: Corpus, *, batch_tokens: int, seed: int) -> None:
        self.corpus, self.data = corpus, LineExamples(corpus)
        self.buckets = LengthBuckets(self.data.lengths(), batch_tokens=batch_tokens, seed=seed)

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return self.buckets.rows

    def lines(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): the numbers of the lines in a batch, from 0."""
        return self.buckets.members(epoch, index)

    def batches(self, epoch: int) -> int:
        return self.buckets.batches(epoch)

    def batch(self, epoch: int, index: int) -> Batch:
        return self.data.batch(self.lines(epoch, index))

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = FULL) -> Batch:
        """The longest lines, as many as fit into a batch."""
        return self.data.largest(self.buckets.longest_examples(), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return self.data.describe(self.lines(epoch, index))


class ScoringWindow(NamedTuple):
    """Rows to score. Target j of row b is token `start[b] + j` of the corpus; it counts if j >= first[b] and the token mask is
    True."""

    tokens: np.ndarray  # int64 (B, T + 1)
    token_mask: np.ndarray | None  # bool (B, T + 1)
    first: np.ndarray  # int64 (B,)
    start: np.ndarray  # int64 (B,)
    resets_state: bool  # whether a carried state is reset before it
    lines: np.ndarray | None = None  # int64 (B,), the numbers of the lines; None in running text


@dataclass(frozen=True)
class WindowExamples(Examples[Batch]):
    """Windows of running text, a stride apart, that count every token once.

    All tokens of the first window count, and the last `stride` tokens of every other window, which then have at least
    context_length - stride tokens of context. The last window is moved back to be full, so no padding is needed.
    """

    corpus: Corpus
    context_length: int
    stride: int

    @cached_property
    def size(self) -> int:
        """Tokens per window: the context length, or the whole corpus if that is shorter."""
        return min(self.context_length, len(self.corpus.tokens) - self._first_position)

    @property
    def _first_position(self) -> int:
        """The position of the first of the tokens that precede the text."""
        return 1 - len(self.corpus.bos_ids)

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 (N,): the start of each window."""
        last = len(self.corpus.tokens) - self.size
        return np.append(np.arange(self._first_position, last, self.stride), last)

    @cached_property
    def first(self) -> np.ndarray:
        """int64 (N,): the first target of each window that counts."""
        previous_ends = np.concatenate([[0], self.starts[:-1] + self.size])
        first: np.ndarray = previous_ends - self.starts
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

    def loss_count(self, members: np.ndarray) -> int:
        return int((self.size - self.first[members]).sum())

    def tokens(self, members: np.ndarray) -> int:
        """Tokens that are in no earlier window."""
        return self.loss_count(members)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, windows of {self.size} tokens from token", self.starts[members])


def sliding_windows(corpus: Corpus, *, context_length: int, stride: int, rows: int) -> Iterator[ScoringWindow]:
    """Windows of running text, a stride apart. In all but the first, only the last `stride` tokens count."""
    data = WindowExamples(corpus, context_length, stride)
    numbers = np.arange(len(data.starts))
    for members in (numbers[low : low + rows] for low in range(0, len(numbers), rows)):
        yield ScoringWindow(data.rows(members), None, data.first[members], data.starts[members], True)


def carried_windows(corpus: Corpus, *, context_length: int, rows: int = 1, warmup: int = 0) -> Iterator[ScoringWindow]:
    """Running text in order, `context_length` tokens at a time, for models that carry a state.

    It is divided into `rows` equal parts that are read in parallel. `warmup` tokens before each part are read but do not count.
    """
    total = len(corpus.tokens)
    edges = np.linspace(0, total, rows + 1).astype(np.int64)
    first_starts = np.maximum(1 - len(corpus.bos_ids), edges[:-1] - warmup)
    max_length = int((edges[1:] - first_starts).max())
    for offset in range(0, max_length, context_length):
        starts, width = first_starts + offset, min(context_length, max_length - offset)
        token_mask = starts[:, None] + np.arange(-1, width) < edges[1:, None]
        first = np.maximum(0, edges[:-1] - starts)
        yield ScoringWindow(_slice(corpus, starts, width + 1), token_mask, first, starts, offset == 0)


def by_length(corpus: Corpus, *, batch_tokens: int) -> Iterator[ScoringWindow]:
    """Every line once, short ones first; rows times positions is at most `batch_tokens` (a longer line is a batch itself)."""
    starts = corpus.line_starts()
    for lines in length_batches(np.diff(starts), batch_tokens=batch_tokens):
        tokens, token_mask = padded_rows(corpus, lines)
        yield ScoringWindow(tokens, token_mask, np.zeros(len(lines), dtype=np.int64), starts[lines], True, lines)
