"""Training of skip-gram and CBOW over a text: parameters, learning rate, epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.models.huffman import huffman_paths
from weft.models.word2vec import (
    HierarchicalSoftmax,
    Inputs,
    NegativeSampling,
    Outputs,
    RowUpdates,
    SubwordInputs,
    WordInputs,
    cbow_step,
    skip_gram_step,
)
from weft.models.word_vectors_config import Word2VecConfig
from weft.models.word_windows import BLOCK, ChunkSampler, Position
from weft.text.char_ngrams import CharNgrams

CHUNK_WORDS, SHARED_NEGATIVES = 256, 128  # centers of a chunk, and the negative samples that they share
TREE_CHUNK_WORDS = 64  # hierarchical softmax: all pairs of a chunk update the root of the tree
WORDS_PER_CENTER = 16  # of a small vocabulary, chunks are shorter, or each word would be in them many times
LOSS_EVERY = 64  # chunks between two whose loss is computed
MIN_LR = 1e-4  # fraction of the learning rate at the end


class Progress(NamedTuple):
    """The state of training after a chunk."""

    position: Position
    fraction: float  # of the whole training
    loss: float | None  # mean per prediction, of the chunks whose loss was computed in this epoch


def _tables(config: Word2VecConfig, counts: NDArray[np.int64], words: Sequence[str], seed: int) -> tuple[Inputs, Outputs]:
    """Random inputs, uniform in +-1 / (2 D), and outputs that are zero."""
    size, generator = config.vector_size, torch.Generator().manual_seed(seed)
    num_rows = len(words) + (config.buckets or 0 if config.max_char_ngram else 0)
    table = (torch.rand(num_rows, size, generator=generator) - 0.5) / size
    inputs: Inputs = WordInputs(table)
    if config.max_char_ngram:
        ngrams = CharNgrams(config.min_char_ngram or 3, config.max_char_ngram, config.buckets or 1)
        buckets, offsets = map(torch.from_numpy, ngrams.of_words(words))
        inputs = SubwordInputs(table, buckets, offsets)
    if config.loss == "hierarchical-softmax":
        return inputs, HierarchicalSoftmax(size, huffman_paths(counts))
    return inputs, NegativeSampling(len(words), size, config.negatives)


class Word2Vec:
    """Input and output vectors of words, and their training."""

    def __init__(self, config: Word2VecConfig, counts: NDArray[np.int64], words: Sequence[str], *, seed: int) -> None:
        self.config, self.counts, self.seed, self.num_words = config, counts, seed, len(words)
        self.inputs, self.outputs = _tables(config, counts, words, seed)
        self._output_updates = RowUpdates(self.outputs.table)
        self._loss, self._pairs = 0.0, 0.0  # of this epoch

    def train(
        self, words: NDArray[np.integer], lines: NDArray[np.integer], *, num_epochs: int, start: Position
    ) -> Iterator[Progress]:
        """Train on a text from a position on, and yield the state after each chunk."""
        config = self.config
        longest = TREE_CHUNK_WORDS if config.loss == "hierarchical-softmax" else CHUNK_WORDS
        sampler = ChunkSampler(words, lines, self.counts)
        sampler.configure(
            window=config.window,
            sample=config.subsample,
            chunk_size=max(BLOCK, min(longest, self.num_words // WORDS_PER_CENTER // BLOCK * BLOCK)),
            num_negatives=SHARED_NEGATIVES,
            negative_power=config.negative_power,
            seed=self.seed,
        )
        step = cbow_step if config.cbow else skip_gram_step
        while start.epoch < num_epochs:
            for position, share, chunk in sampler.chunks(start):
                fraction = (start.epoch + share) / num_epochs
                lr = config.lr * max(MIN_LR, 1 - fraction)
                has_loss = position.chunk % LOSS_EVERY == 1
                result = step(self.inputs, self.outputs, chunk, with_loss=has_loss)
                self.inputs.descend(result.inputs, lr)
                self._output_updates.descend(result.outputs, lr)
                if result.loss is not None:
                    self._loss, self._pairs = self._loss + float(result.loss), self._pairs + float(result.pairs)
                yield Progress(position, fraction, self._loss / self._pairs if self._pairs else None)
            start = Position(start.epoch + 1, 0, 0)
            self._loss = self._pairs = 0.0

    def state(self) -> dict[str, NDArray[np.float64] | NDArray[np.float32]]:
        """What training must remember besides its position."""
        losses = np.array([self._loss, self._pairs])
        return {"inputs": self.inputs.table.numpy(), "outputs": self.outputs.table.numpy(), "losses": losses}

    def restore(self, state: Mapping[str, NDArray[np.float64] | NDArray[np.float32]]) -> None:
        self.inputs.table.copy_(torch.from_numpy(state["inputs"].copy()))
        self.outputs.table.copy_(torch.from_numpy(state["outputs"].copy()))
        self._loss, self._pairs = state["losses"].tolist()

    def vectors(self) -> Tensor:
        """(V, D): the vectors of the words."""
        vectors = self.inputs.lookup(torch.arange(self.num_words))
        return vectors + self.outputs.table if self.config.add_contexts else vectors

    def buckets(self) -> Tensor | None:
        """(buckets, D): the vectors of character n-grams."""
        return self.inputs.table[self.num_words :] if self.config.max_char_ngram else None
