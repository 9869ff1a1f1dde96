"""GloVe (Pennington et al. 2014): the logarithm of a count is the dot product of a word and a context vector plus two biases.

    loss = sum over pairs of f(x) (w . c + a + b - log x)^2,   f(x) = min(1, (x / x_max) ^ weight_power)

AdaGrad takes batches of pairs, whose gradients are summed for each row. Shapes: V words, M pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from weft.models.cooccurrence import Cooccurrences
from weft.models.word_vectors_config import GloveConfig

BATCH_PAIRS = 1 << 14
EPSILON = 1e-8


class Glove:
    """Word and context vectors with their biases as a last column; `parameters` and `squares` are the state of training."""

    def __init__(self, pairs: Cooccurrences, config: GloveConfig, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        size = config.vector_size + 1
        self.parameters = [(torch.rand(pairs.num_words, size, generator=generator) - 0.5) / size for _ in range(2)]
        self.squares = [torch.ones(pairs.num_words, size) for _ in range(2)]  # 1, as in the reference implementation
        self.config, self.seed = config, seed
        self._ids = [torch.from_numpy(pairs.words), torch.from_numpy(pairs.contexts)]
        self._logs = torch.from_numpy(np.log(pairs.counts)).float()
        weights = np.minimum(1.0, (pairs.counts / config.x_max) ** config.weight_power)
        self._weights = torch.from_numpy(weights).float()

    def train_epoch(self, epoch: int, progress: Callable[[int, int], None]) -> float:
        """One pass over all pairs in an order that depends on seed and epoch. Returns the mean loss per pair."""
        order = torch.from_numpy(np.random.default_rng((self.seed, epoch)).permutation(len(self._logs)))
        total = 0.0
        for start in range(0, len(order), BATCH_PAIRS):
            total += self._step(order[start : start + BATCH_PAIRS])
            progress(start, len(order))
        return total / max(1, len(order))

    def _step(self, members: Tensor) -> float:
        loss, gradients = self.gradients(members)
        for table, squares, (rows, gradient) in zip(self.parameters, self.squares, gradients, strict=True):
            accumulated = squares.index_select(0, rows)
            table.index_add_(0, rows, gradient / (accumulated + EPSILON).sqrt(), alpha=-self.config.lr)
            squares.index_copy_(0, rows, accumulated + gradient.square())
        return loss

    def gradients(self, members: Tensor) -> tuple[float, list[tuple[Tensor, Tensor]]]:
        """The loss of some pairs, and for both tables the rows that have a gradient, and half of it, as GloVe defines it."""
        ids = [part[members] for part in self._ids]
        words, contexts = (table.index_select(0, part) for table, part in zip(self.parameters, ids, strict=True))
        dot = (words[:, :-1] * contexts[:, :-1]).sum(1) + words[:, -1] + contexts[:, -1]
        error = dot - self._logs[members]
        slope = (self._weights[members] * error)[:, None]
        ones = torch.ones(len(members), 1)
        towards = [torch.cat([contexts[:, :-1], ones], 1) * slope, torch.cat([words[:, :-1], ones], 1) * slope]
        merged = []
        for part, gradient in zip(ids, towards, strict=True):
            rows, inverse = (torch.from_numpy(array) for array in np.unique(part.numpy(), return_inverse=True))
            merged.append((rows, torch.zeros(len(rows), gradient.shape[1]).index_add_(0, inverse, gradient)))
        return float((slope[:, 0] * error).sum()), merged

    def vectors(self) -> Tensor:
        """(V, D): the sums of word and context vectors, without biases."""
        return (self.parameters[0] + self.parameters[1])[:, :-1]
