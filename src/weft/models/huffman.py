"""The binary tree of hierarchical softmax: frequent words have short paths (Morin and Bengio 2005; Mikolov et al. 2013)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Paths(NamedTuple):
    """The path of each of V words from the root, padded to the longest. The probability of a word is the product of
    sigmoid(sign * node . input) over its path."""

    nodes: NDArray[np.int64]  # (V, L): inner nodes; 0, the root, as padding
    signs: NDArray[np.float32]  # (V, L): 1 or -1, which child follows; 0 as padding


def huffman_paths(counts: NDArray[np.int64]) -> Paths:
    """The Huffman tree of V words, at least two, with their counts in descending order. It has V - 1 inner nodes, and node 0 is
    the root."""
    num_words = len(counts)
    # leaves from the rarest word on and inner nodes as they are made are both sorted, so that the two smallest are in front
    weight = np.concatenate([counts, np.full(num_words - 1, np.iinfo(np.int64).max // 4)])
    parent, is_second = np.zeros(2 * num_words - 1, np.int64), np.zeros(2 * num_words - 1, bool)
    leaf, inner = num_words - 1, num_words
    for new in range(num_words, 2 * num_words - 1):
        children = []
        for _ in range(2):
            takes_leaf = leaf >= 0 and (inner >= new or weight[leaf] <= weight[inner])
            children.append(leaf if takes_leaf else inner)
            leaf, inner = (leaf - 1, inner) if takes_leaf else (leaf, inner + 1)
        weight[new] = weight[children[0]] + weight[children[1]]
        parent[children], is_second[children[1]] = new, True
    return _paths(parent, is_second, num_words)


def _paths(parent: NDArray[np.int64], is_second: NDArray[np.bool_], num_words: int) -> Paths:
    """Walk up from all leaves at once, then reverse each path."""
    root, node = len(parent) - 1, np.arange(num_words)
    steps: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
    while (node != root).any():
        sign = np.where(node == root, 0.0, np.where(is_second[node], -1.0, 1.0)).astype(np.float32)
        node = np.where(node == root, root, parent[node])
        steps.append((root - node, sign))
    nodes, signs = (np.stack(part, 1) for part in zip(*steps, strict=True))
    lengths = (signs != 0).sum(1)
    order = np.arange(nodes.shape[1])[None]
    reverse = np.where(order < lengths[:, None], lengths[:, None] - 1 - order, order)
    return Paths(np.take_along_axis(nodes, reverse, 1) * (order < lengths[:, None]), np.take_along_axis(signs, reverse, 1))
