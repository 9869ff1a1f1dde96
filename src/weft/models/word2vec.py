"""Skip-gram and CBOW (Mikolov et al. 2013) as matrix products over chunks of the text.

word2vec updates two vectors at a time. Here the gradient of a whole chunk is computed at once: the words of a block and those
around it are one small matrix product, and all centers of a chunk share K negative samples (Ji et al. 2016), each with the
weight of `negatives` / K samples. The expected loss is the same, and a CPU spends its time in matrix products.

Loss of a center with input v and a context word with output u, with negative samples w:

    -log sigmoid(u . v) - sum over w of log sigmoid(-w . v)

Hierarchical softmax replaces it by -sum of log sigmoid(sign * node . v) over the path of the context word. CBOW has one
prediction per center: v is the mean of the inputs of the context words, and u the output of the center.

Shapes: T centers, R the largest window, D dimensions, K negative samples, L path length; blocks of B centers with W = B + 2 R
words around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.models.huffman import Paths
from weft.models.word_windows import BLOCK, Chunk

MAX_STEP = 3.2  # learning rate times pairs of a vector in a chunk; of more pairs, the gradient is scaled down


class Rows(NamedTuple):
    """Gradients of rows of a table; `pairs` is how many pairs of words each sums over."""

    ids: Tensor  # int64 (N,)
    grad: Tensor  # (N, D)
    pairs: Tensor  # (N,)


class Step(NamedTuple):
    """The gradients of a chunk: of the inputs, by word, and of the rows of the output table. The loss is summed over pairs."""

    inputs: Rows
    outputs: list[Rows]
    loss: Tensor | None
    pairs: Tensor  # number of predictions


class Outputs(Protocol):
    """The output table, and the loss of predictions."""

    table: Tensor

    def skip_gram(self, centers: Tensor, words: Tensor, chunk: Chunk, *, with_loss: bool) -> Step: ...

    def cbow(self, hidden: Tensor, words: Tensor, chunk: Chunk, *, with_loss: bool) -> tuple[Tensor, Step]: ...


def blocks(rows: Tensor, width: int) -> Tensor:
    """(T / B, W, D): the rows around each block, a view of rows (T + 2 R, D)."""
    num, size = (len(rows) - (width - BLOCK)) // BLOCK, rows.shape[1]
    return rows.as_strided((num, width, size), (BLOCK * size, size, 1))


def unblock(grad: Tensor) -> Tensor:
    """(T + 2 R, D): the sum of overlapping blocks (T / B, W, D), the adjoint of `blocks`."""
    num, width, size = grad.shape
    total = grad.new_zeros(num * BLOCK + width - BLOCK, size)
    for start in range(0, width, BLOCK):  # parts of BLOCK rows do not overlap
        part = grad[:, start : start + BLOCK]
        total[start:].as_strided((num, part.shape[1], size), (BLOCK * size, size, 1)).add_(part)
    return total


class NegativeSampling:
    """Outputs are one vector per word."""

    def __init__(self, num_words: int, size: int, negatives: float) -> None:
        self.table, self.negatives = torch.zeros(num_words, size), negatives

    def skip_gram(self, centers: Tensor, words: Tensor, chunk: Chunk, *, with_loss: bool) -> Step:
        mask, sampled = torch.from_numpy(chunk.mask), torch.from_numpy(chunk.negatives)
        num, _, width = mask.shape
        around = blocks(self.table.index_select(0, words), width)
        center_blocks = centers.view(num, BLOCK, -1)
        scores = torch.bmm(center_blocks, around.transpose(1, 2))  # (T / B, B, W)
        noise = self.table.index_select(0, sampled)
        noise_scores = centers @ noise.T  # (T, K)
        pairs = mask.sum(2).view(-1, 1)  # contexts of each center
        weight = pairs * (self.negatives / len(sampled))
        loss = _loss(scores, mask, noise_scores, weight) if with_loss else None
        grad = scores.sigmoid_().sub_(1.0).mul_(mask)
        noise_grad = noise_scores.sigmoid_().mul_(weight)
        grad_centers = torch.bmm(grad, around).view_as(centers).addmm_(noise_grad, noise)
        reach = (width - BLOCK) // 2
        center_ids = words[reach : len(words) - reach]
        context_pairs = unblock(mask.sum(1)[:, :, None])[:, 0]
        noise_pairs = weight.sum().expand(len(sampled))
        outputs = [
            Rows(words, unblock(torch.bmm(grad.transpose(1, 2), center_blocks)), context_pairs),
            Rows(sampled, noise_grad.T @ centers, noise_pairs),
        ]
        return Step(Rows(center_ids, grad_centers, pairs[:, 0]), outputs, loss, pairs.sum())

    def cbow(self, hidden: Tensor, words: Tensor, chunk: Chunk, *, with_loss: bool) -> tuple[Tensor, Step]:
        sampled = torch.from_numpy(chunk.negatives)
        reach = (len(words) - len(hidden)) // 2
        center_ids = words[reach : len(words) - reach]
        is_center = torch.from_numpy(chunk.mask.any(2)).view(-1, 1).to(hidden.dtype)
        targets, noise = self.table.index_select(0, center_ids), self.table.index_select(0, sampled)
        scores, noise_scores = (hidden * targets).sum(1, keepdim=True), hidden @ noise.T
        weight = is_center * (self.negatives / len(sampled))
        loss = _loss(scores, is_center, noise_scores, weight) if with_loss else None
        grad, noise_grad = (scores.sigmoid() - 1.0) * is_center, noise_scores.sigmoid_().mul_(weight)
        grad_hidden = torch.addmm(grad * targets, noise_grad, noise)
        outputs = [
            Rows(center_ids, grad * hidden, is_center[:, 0]),
            Rows(sampled, noise_grad.T @ hidden, weight.sum().expand(len(sampled))),
        ]
        return grad_hidden, Step(Rows(center_ids, grad_hidden, is_center[:, 0]), outputs, loss, is_center.sum())


def _loss(scores: Tensor, mask: Tensor, noise_scores: Tensor, weight: Tensor) -> Tensor:
    return -(F.logsigmoid(scores) * mask).sum() - (F.logsigmoid(-noise_scores) * weight).sum()


class HierarchicalSoftmax:
    """Outputs are one vector per inner node of a binary tree."""

    def __init__(self, size: int, paths: Paths) -> None:
        self.nodes, self.signs = torch.from_numpy(paths.nodes), torch.from_numpy(paths.signs)
        self.table = torch.zeros(max(1, len(paths.nodes) - 1), size)

    def skip_gram(self, centers: Tensor, words: Tensor, chunk: Chunk, *, with_loss: bool) -> Step:
        mask = torch.from_numpy(chunk.mask)
        num, _, width = mask.shape
        nodes, signs = self.nodes[words], self.signs[words]  # (T + 2 R, L)
        length = nodes.shape[1]
        rows = self.table.index_select(0, nodes.view(-1)).view(len(words), -1)  # (T + 2 R, L D)
        around = blocks(rows, width).reshape(num, width * length, -1)  # (T / B, W L, D)
        center_blocks = centers.view(num, BLOCK, -1)
        scores = torch.bmm(center_blocks, around.transpose(1, 2)).view(num, BLOCK, width, length)
        sign = blocks(signs, width)[:, None]  # (T / B, 1, W, L)
        weight = mask[..., None] * sign.abs()
        loss = -(F.logsigmoid(sign * scores) * weight).sum() if with_loss else None
        grad = (-sign * torch.sigmoid(-sign * scores) * weight).view(num, BLOCK, -1)
        grad_nodes = torch.bmm(grad.transpose(1, 2), center_blocks).view(num, width, -1)
        pairs, context_pairs = mask.sum(2).view(-1), unblock(mask.sum(1)[:, :, None])
        reach = (width - BLOCK) // 2
        inputs = Rows(words[reach : len(words) - reach], torch.bmm(grad, around).view_as(centers), pairs)
        return Step(inputs, [self._rows(nodes, unblock(grad_nodes), context_pairs, signs)], loss, pairs.sum())

    def cbow(self, hidden: Tensor, words: Tensor, chunk: Chunk, *, with_loss: bool) -> tuple[Tensor, Step]:
        reach = (len(words) - len(hidden)) // 2
        center_ids = words[reach : len(words) - reach]
        is_center = torch.from_numpy(chunk.mask.any(2)).view(-1, 1).to(hidden.dtype)
        nodes, sign = self.nodes[center_ids], self.signs[center_ids]
        rows = self.table.index_select(0, nodes.view(-1)).view(*nodes.shape, -1)  # (T, L, D)
        scores, weight = torch.einsum("td,tld->tl", hidden, rows), is_center * sign.abs()
        loss = -(F.logsigmoid(sign * scores) * weight).sum() if with_loss else None
        grad = -sign * torch.sigmoid(-sign * scores) * weight
        grad_hidden = torch.einsum("tl,tld->td", grad, rows)
        outputs = self._rows(nodes, grad[:, :, None] * hidden[:, None], is_center, sign)
        return grad_hidden, Step(Rows(center_ids, grad_hidden, is_center[:, 0]), [outputs], loss, is_center.sum())

    def _rows(self, nodes: Tensor, grad: Tensor, pairs: Tensor, signs: Tensor) -> Rows:
        """Gradients of nodes (N, L); padding has none."""
        return Rows(nodes.reshape(-1), grad.reshape(-1, self.table.shape[1]), (pairs * signs.abs()).reshape(-1))


class RowUpdates:
    """Adds gradients to the rows of a table: SGD, with a limit on the pairs in one step. All pairs of a
    chunk see the same vectors, so that without it the steps of a word that is everywhere in the chunk would be too long."""

    def __init__(self, table: Tensor) -> None:
        self.table, self._pairs = table, torch.zeros(len(table))

    def descend(self, parts: Sequence[Rows], lr: float) -> None:
        for part in parts:
            self._pairs.index_add_(0, part.ids, part.pairs)
        for part in parts:
            scale = self._pairs.index_select(0, part.ids).reciprocal_().mul_(MAX_STEP / lr).clamp_(max=1.0)  # 1 for 0 pairs
            self.table.index_add_(0, part.ids, part.grad * scale[:, None], alpha=-lr)
        for part in parts:
            self._pairs.index_fill_(0, part.ids, 0.0)


class Inputs(Protocol):
    """The input vectors of words."""

    table: Tensor

    def lookup(self, words: Tensor) -> Tensor:
        """(N, D): the vectors of words (N,)."""

    def descend(self, rows: Rows, lr: float) -> None:
        """Update the table, given the gradients of words."""


class WordInputs:
    """One vector per word."""

    def __init__(self, table: Tensor) -> None:
        self.table, self._updates = table, RowUpdates(table)

    def lookup(self, words: Tensor) -> Tensor:
        return self.table.index_select(0, words)

    def descend(self, rows: Rows, lr: float) -> None:
        self._updates.descend([rows], lr)


class SubwordInputs:
    """The vector of a word is the mean of its own row and of those of its character n-grams (Bojanowski et al. 2017). As in
    fastText, each of them gets the whole gradient of the mean, so that a step is as long as that of a word without n-grams.

    Args:
        table: (V + buckets, D): rows of the words, then of the buckets.
        buckets: (M,): the buckets of the n-grams of all words.
        offsets: (V + 1,): where those of each word start.
    """

    def __init__(self, table: Tensor, buckets: Tensor, offsets: Tensor) -> None:
        num_words = len(offsets) - 1
        lengths = offsets.diff() + 1
        self.starts, self.lengths = offsets[:-1] + torch.arange(num_words), lengths
        self.ids = torch.empty(len(buckets) + num_words, dtype=torch.int64)  # of each word, its own row and its buckets
        is_own = torch.zeros(len(self.ids), dtype=torch.bool)
        is_own[self.starts] = True
        self.ids[is_own], self.ids[~is_own] = torch.arange(num_words), buckets + num_words
        self.table, self._updates = table, RowUpdates(table)

    def _rows(self, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of N words, concatenated, the number of each word's, and where they start."""
        lengths = self.lengths[words]
        offsets = lengths.cumsum(0) - lengths
        positions = torch.arange(int(lengths.sum())) + (self.starts[words] - offsets).repeat_interleave(lengths)
        return self.ids[positions], lengths, offsets

    def lookup(self, words: Tensor) -> Tensor:
        rows, _, offsets = self._rows(words)
        return F.embedding_bag(rows, self.table, offsets, mode="mean")

    def descend(self, rows: Rows, lr: float) -> None:
        ids, lengths, _ = self._rows(rows.ids)
        self._updates.descend([Rows(ids, rows.grad.repeat_interleave(lengths, 0), rows.pairs.repeat_interleave(lengths))], lr)


def skip_gram_step(inputs: Inputs, outputs: Outputs, chunk: Chunk, *, with_loss: bool = False) -> Step:
    """The gradients of a chunk: each center predicts its contexts."""
    words, reach = torch.from_numpy(chunk.words), (chunk.mask.shape[2] - BLOCK) // 2
    centers = inputs.lookup(words[reach : len(words) - reach])
    return outputs.skip_gram(centers, words, chunk, with_loss=with_loss)


def cbow_step(inputs: Inputs, outputs: Outputs, chunk: Chunk, *, with_loss: bool = False) -> Step:
    """The gradients of a chunk: the mean of its contexts predicts each center. The gradient of a mean is divided by the number
    of words (word2vec.c does not: Irsoy et al. 2021)."""
    words, mask = torch.from_numpy(chunk.words), torch.from_numpy(chunk.mask)
    mean, vectors = mask / mask.sum(2, keepdim=True).clamp(min=1.0), inputs.lookup(words)
    hidden = torch.bmm(mean, blocks(vectors, mask.shape[2])).view(-1, vectors.shape[1])
    grad_hidden, step = outputs.cbow(hidden, words, chunk, with_loss=with_loss)
    grad = unblock(torch.bmm(mean.transpose(1, 2), grad_hidden.view(len(mask), BLOCK, -1)))
    return step._replace(inputs=Rows(words, grad, unblock(mean.sum(1)[:, :, None])[:, 0]))
