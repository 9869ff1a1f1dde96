"""Batches of a corpus: training batches as pure functions of (seed, epoch, index), evaluation batches in one pass.

No random state is stored: all randomness comes from `numpy.random.SeedSequence((seed, epoch))`, so a resumed run continues at
(epoch, index) exactly like an uninterrupted one. In training, <s> precedes the first token of running text.

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
from weft.data.bucketing import MAX_STORED, Examples, LengthBuckets, length_batches
from weft.data.corpus import Corpus
from weft.data.shuffle import Permutation
from weft.data.streamed_buckets import LineLengths
from weft.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    tokens: Tensor  # int64 (B, T + 1)
    token_mask: Tensor | None  # bool (B, T + 1), False on padding; None without padding


Rows = TypeVar("Rows", bound=tuple[Any, ...], covariant=True, default=Batch)


class BatchSampler(Protocol[Rows]):
    """Training batches. A batch depends only on (epoch, index), not on previous calls."""

    @property
    def rows(self) -> int:
        """Rows per batch, on average if batches differ."""

    def batches(self, epoch: int) -> int:
        """Number of batches in an epoch."""

    def batch(self, epoch: int, index: int) -> Rows: ...

    def resets_state(self, index: int) -> bool:
        """Whether to reset a carried state, because this batch does not continue the previous one."""

    def largest_batch(self, fraction: Fraction = FULL) -> Rows:
        """A batch of maximum size, to measure memory; its rows are truncated to `fraction` of their positions."""

    def describe(self, epoch: int, index: int) -> str:
        """The location of a batch in the corpus, for messages."""


def _slice(corpus: Corpus, starts: np.ndarray, length: int) -> np.ndarray:
    """int64 (B, length): rows of running text from the positions `starts` (B,). Position 0 is the last BOS token, position 1
    the first token of the text. Past the end, the last token is repeated."""
    positions = starts[:, None] + np.arange(length) - 1
    rows: np.ndarray = corpus.tokens[np.clip(positions, 0, len(corpus.tokens) - 1)].astype(np.int64)
    rows[positions < 0] = np.array(corpus.bos_ids)[positions[positions < 0]]
    return rows


def preview(name: str, numbers: np.ndarray) -> str:
    """`name` and the first few of `numbers` (N,), for messages."""
    first = ", ".join(str(number) for number in numbers[:8].tolist())
    return f"{name} {first}{f' and {len(numbers) - 8} more' if len(numbers) > 8 else ''}"


class Windows:
    """Shuffled windows over running text, one every `stride` tokens.

    Each epoch shifts all windows by a random phase, so that they start at other tokens, and other tokens at the two ends (less
    than two strides in total) are unused. Every row is full; the last batch may have fewer rows.
    """

    def __init__(self, corpus: Corpus, *, context_length: int, stride: int, rows: int, seed: int) -> None:
        max_start = len(corpus.tokens) - context_length
        if max_start < 0:
            count = len(corpus.tokens)
            problem = f"{corpus.name} has only {count} token{'' if count == 1 else 's'}"
            raise DataError("data.context_length", problem, f"use more text or a context_length of at most {count}")
        self.corpus, self.context_length, self.stride, self.rows, self.seed = corpus, context_length, stride, rows, seed
        self.count = max(1, (max_start + 1) // stride)
        # with phases from one end to the other, every token is a target in some epoch
        self.num_phases = max_start - stride * (self.count - 1) + 1
        self._epoch_order: tuple[int, int, Permutation] | None = None

    def batches(self, epoch: int) -> int:
        return -(-self.count // self.rows)

    def starts(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): position of the first input of each row; 0 is <s>."""
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            rng = np.random.default_rng(np.random.SeedSequence((self.seed, epoch)))
            self._epoch_order = (epoch, int(rng.integers(self.num_phases)), Permutation(self.count, rng))
        _, phase, permutation = self._epoch_order
        windows = np.arange(index * self.rows, min((index + 1) * self.rows, self.count))
        return phase + self.stride * permutation(windows)

    def grid(self, epoch: int) -> np.ndarray:
        """int64 (count,): starts of all windows of an epoch, ascending."""
        return np.sort(np.concatenate([self.starts(epoch, index) for index in range(self.batches(epoch))]))

    def rows_at(self, starts: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64 (B, T + 1): tokens of the windows at `starts` (B,)."""
        return _slice(self.corpus, np.asarray(starts), self.context_length + 1)

    def batch_at(self, starts: Sequence[int] | np.ndarray) -> Batch:
        """A batch of the windows at `starts` (B,)."""
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
    """Running text divided into `rows` streams of equal length, read in parallel and in order for truncated backpropagation
    through time.

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
        start = index * self.context_length
        length = min(self.context_length, self.length - start)
        rows = _slice(self.corpus, start + self.length * np.arange(self.rows), length + 1)
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
    """Tokens and token mask, both (B, T + 1), of the lines with indices `lines` (B,): <s>, the line, </s>, padding 0."""
    starts = corpus.line_starts()
    row_starts, lengths = starts[lines], starts[lines + 1] - starts[lines]
    positions = np.arange(int(lengths.max()))
    is_token = positions < lengths[:, None]
    rows = np.where(is_token, corpus.tokens[np.where(is_token, row_starts[:, None] + positions, 0)].astype(np.int64), 0)
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
        """int64 (N,): tokens of each line, with </s>."""
        return np.diff(self.corpus.line_starts())

    def batch(self, members: np.ndarray) -> Batch:
        return Batch(*pad_lines(self.corpus, members))

    def loss_count(self, members: np.ndarray) -> int:
        return int(LineLengths(self.corpus.line_starts())[members].sum())

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, lines", np.sort(members) + 1)


class Lines:
    """Separate lines in batches of similar length."""

    def __init__(self, corpus: Corpus, *, batch_tokens: int, seed: int) -> None:
        self.corpus, self.data = corpus, LineExamples(corpus)
        lengths = LineLengths(corpus.line_starts()) if corpus.lines > MAX_STORED else self.data.lengths()
        self.buckets = LengthBuckets(lengths, batch_tokens=batch_tokens, seed=seed)

    @property
    def rows(self) -> int:
        """Rows of an average batch."""
        return self.buckets.rows

    def lines(self, epoch: int, index: int) -> np.ndarray:
        """int64 (B,): indices of the lines in a batch."""
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
    """Rows to score. Target j of row b is token `start[b] + j` of the corpus. It is scored if j >= first[b] and the token mask
    is True."""

    tokens: np.ndarray  # int64 (B, T + 1)
    token_mask: np.ndarray | None  # bool (B, T + 1)
    first: np.ndarray  # int64 (B,)
    start: np.ndarray  # int64 (B,)
    resets_state: bool  # whether to reset a carried state before it
    lines: np.ndarray | None = None  # int64 (B,): indices of the lines; None in running text


@dataclass(frozen=True)
class WindowExamples(Examples[Batch]):
    """Windows of running text, one every `stride` tokens, that score every token once.

    All tokens of the first window are scored, and the last `stride` tokens of every other window, which have at least
    context_length - stride tokens of context. The last window is moved back to be full, so no padding is needed.
    """

    corpus: Corpus
    context_length: int
    stride: int

    @cached_property
    def size(self) -> int:
        """Tokens per window: the context length, or the length of the corpus if that is shorter."""
        return min(self.context_length, len(self.corpus.tokens) - self._first_position)

    @property
    def _first_position(self) -> int:
        """Position of the first BOS token; position 0 is the last one."""
        return 1 - len(self.corpus.bos_ids)

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 (N,): start of each window."""
        last = len(self.corpus.tokens) - self.size
        return np.append(np.arange(self._first_position, last, self.stride), last)

    @cached_property
    def first(self) -> np.ndarray:
        """int64 (N,): first scored target of each window."""
        previous_ends = np.concatenate([[0], self.starts[:-1] + self.size])
        first: np.ndarray = previous_ends - self.starts
        return first

    def lengths(self) -> np.ndarray:
        return np.full(len(self.starts), self.size)

    def rows(self, members: np.ndarray) -> np.ndarray:
        """int64 (B, T + 1): tokens of the windows with indices `members` (B,)."""
        return _slice(self.corpus, self.starts[members], self.size + 1)

    def batch(self, members: np.ndarray) -> Batch:
        is_scored = np.arange(-1, self.size) >= self.first[members][:, None]
        is_scored[:, 0] = True
        return Batch(as_tensor(self.rows(members)), as_tensor(is_scored))

    def loss_count(self, members: np.ndarray) -> int:
        return int((self.size - self.first[members]).sum())

    def tokens(self, members: np.ndarray) -> int:
        """Number of tokens that are in no previous window."""
        return self.loss_count(members)

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.corpus.name}, windows of {self.size} tokens from token", self.starts[members])


def sliding_windows(corpus: Corpus, *, context_length: int, stride: int, rows: int) -> Iterator[ScoringWindow]:
    """Windows of running text, one every `stride` tokens. In all but the first, only the last `stride` tokens are scored."""
    data = WindowExamples(corpus, context_length, stride)
    for start in range(0, len(data.starts), rows):
        members = np.arange(start, min(start + rows, len(data.starts)))
        yield ScoringWindow(data.rows(members), None, data.first[members], data.starts[members], True)


def carried_windows(corpus: Corpus, *, context_length: int, rows: int = 1, warmup: int = 0) -> Iterator[ScoringWindow]:
    """Running text in order, `context_length` tokens at a time, for models that carry a state.

    The text is divided into `rows` equal parts, read in parallel. `warmup` tokens before each part are read but not scored.
    """
    total = len(corpus.tokens)
    edges = np.linspace(0, total, rows + 1).astype(np.int64)
    first_starts = np.maximum(1 - len(corpus.bos_ids), edges[:-1] - warmup)
    max_length = int((edges[1:] - first_starts).max())
    for offset in range(0, max_length, context_length):
        starts, length = first_starts + offset, min(context_length, max_length - offset)
        token_mask = starts[:, None] + np.arange(-1, length) < edges[1:, None]
        first = np.maximum(0, edges[:-1] - starts)
        yield ScoringWindow(_slice(corpus, starts, length + 1), token_mask, first, starts, offset == 0)


def by_length(corpus: Corpus, *, batch_tokens: int) -> Iterator[ScoringWindow]:
    """Every line once, shortest first; a batch has at most `batch_tokens` positions, or one longer line."""
    starts = corpus.line_starts()
    for lines in length_batches(np.diff(starts), batch_tokens=batch_tokens):
        tokens, token_mask = padded_rows(corpus, lines)
        yield ScoringWindow(tokens, token_mask, np.zeros(len(lines), dtype=np.int64), starts[lines], True, lines)
