"""Windows of words for word2vec: subsampling, dynamic windows and negative samples, drawn for a segment of the text at a time.

All draws of a segment depend on the seed, the epoch and the segment alone, so that training can be resumed at any chunk.

Shapes: T positions of a chunk, R the largest window, B positions of a block, W = B + 2 R its positions with both margins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
SEGMENT_WORDS = 1 << 20  # words of the text whose draws are in memory at a time
BLOCK = 16  # positions that share a matrix product
NOWHERE = -1  # the line of padding


class Chunk(NamedTuple):
    """T successive words of the text as centers, and which words around each are its contexts."""

    words: Ints  # (T + 2 R,): the words, with R words before and after them; 0 as padding
    mask: NDArray[np.float32]  # (T / B, B, W): 1 where a word of a block's neighborhood is a context of a center
    negatives: Ints  # (K,): negative samples for all centers


class Position(NamedTuple):
    """Where training is: all chunks before this one have been used."""

    epoch: int
    segment: int
    chunk: int


def keep_probabilities(counts: NDArray[np.int64], sample: float) -> NDArray[np.float64]:
    """(V,): sqrt(t / f) + t / f for relative frequency f and threshold t, at most 1; as word2vec computes it."""
    if not sample:
        return np.ones(len(counts))
    ratio = sample / (np.maximum(counts, 1) / max(1, counts.sum()))
    kept: NDArray[np.float64] = np.minimum(1.0, np.sqrt(ratio) + ratio)
    return kept


class ChunkSampler:
    """Draws the chunks of an epoch. `lines` has the number of the line of each word: no window crosses a line end."""

    def __init__(self, words: NDArray[np.integer], lines: NDArray[np.integer], counts: NDArray[np.int64]) -> None:
        self.words, self.lines, self.counts = words, lines, counts
        self.window, self.chunk_size, self.num_negatives = 5, 256, 64
        self.sample, self.negative_power, self.seed = 1e-3, 0.75, 0

    def configure(
        self, *, window: int, sample: float, chunk_size: int, num_negatives: int, negative_power: float, seed: int
    ) -> None:
        """Set the options; the chunk size is a multiple of BLOCK."""
        self.window, self.sample, self.chunk_size, self.num_negatives = window, sample, chunk_size, num_negatives
        self.negative_power, self.seed = negative_power, seed

    @property
    def num_segments(self) -> int:
        return -(-len(self.words) // SEGMENT_WORDS)

    def chunks(self, start: Position) -> Iterator[tuple[Position, float, Chunk]]:
        """The chunks of an epoch from a position on: the position after each, the fraction of the epoch that is done before it,
        and the chunk."""
        keep = keep_probabilities(self.counts, self.sample)
        noise = np.cumsum(self.counts.astype(np.float64) ** self.negative_power)
        for segment in range(start.segment, self.num_segments):
            first = start.chunk if segment == start.segment else 0
            low, high = segment * SEGMENT_WORDS, min((segment + 1) * SEGMENT_WORDS, len(self.words))
            rng = np.random.default_rng((self.seed, start.epoch, segment))
            chunks = self._segment(np.asarray(self.words[low:high]), np.asarray(self.lines[low:high]), keep, noise, rng)
            for index, (total, chunk) in enumerate(chunks):
                if index >= first:
                    after = Position(start.epoch, segment, index + 1)
                    yield after, (low + (high - low) * index / total) / len(self.words), chunk

    def _segment(
        self,
        words: NDArray[np.integer],
        lines: NDArray[np.integer],
        keep: NDArray[np.float64],
        noise: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> Iterator[tuple[int, Chunk]]:
        """The chunks of a segment in random order, with their number."""
        reach, size = self.window, self.chunk_size
        kept = rng.random(len(words)) < keep[words]
        num_chunks = -(-int(kept.sum()) // size)
        padding = (reach, num_chunks * size - int(kept.sum()) + reach)
        ids = np.pad(words[kept].astype(np.int64), padding)
        line_ids = np.pad(lines[kept].astype(np.int64), padding, constant_values=NOWHERE)
        windows = rng.integers(1, reach + 1, num_chunks * size)
        negatives = np.searchsorted(noise, rng.random((num_chunks, self.num_negatives)) * noise[-1], side="right")
        distance = _block_distances(reach)
        for index in rng.permutation(num_chunks).tolist():
            span = slice(index * size, (index + 1) * size + 2 * reach)
            mask = _mask(line_ids[span], windows[index * size : (index + 1) * size], distance)
            yield num_chunks, Chunk(ids[span], mask, negatives[index])


def _block_distances(reach: int) -> NDArray[np.int64]:
    """(B, W): the distance between a center and a word of its block's neighborhood; beyond every window for the center."""
    distance = np.abs(np.arange(BLOCK + 2 * reach)[None] - reach - np.arange(BLOCK)[:, None])
    return np.where(distance == 0, reach + 1, distance)


def _mask(lines: Ints, windows: Ints, distance: NDArray[np.int64]) -> NDArray[np.float32]:
    """(T / B, B, W): which words are contexts: at most the drawn window away, and in the same line."""
    reach = (distance.shape[1] - BLOCK) // 2
    around = lines[np.arange(0, len(windows), BLOCK)[:, None] + np.arange(distance.shape[1])]  # (T / B, W)
    center = lines[reach : len(lines) - reach].reshape(-1, BLOCK, 1)
    is_context = (distance <= windows.reshape(-1, BLOCK, 1)) & (around[:, None] == center) & (center != NOWHERE)
    mask: NDArray[np.float32] = is_context.astype(np.float32)
    return mask
