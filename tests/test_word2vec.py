"""Skip-gram and CBOW: gradients of chunks against autograd of the loss written pair by pair, draws, the tree, training."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from weft.models.huffman import huffman_paths
from weft.models.word2vec import (
    BLOCK,
    MAX_STEP,
    HierarchicalSoftmax,
    NegativeSampling,
    Rows,
    RowUpdates,
    SubwordInputs,
    WordInputs,
    blocks,
    cbow_step,
    skip_gram_step,
    unblock,
)
from weft.models.word2vec_model import Word2Vec
from weft.models.word_vectors_config import Word2VecConfig
from weft.models.word_windows import ChunkSampler, Position, keep_probabilities
from weft.text.char_ngrams import CharNgrams, char_ngrams

WORDS, SIZE, NEGATIVES = 30, 7, 5.0


def text(words: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = (rng.random(words) ** 2 * WORDS).astype(np.int32)
    return ids, np.sort(rng.integers(0, 12, words)).astype(np.int32), np.sort(np.bincount(ids, minlength=WORDS))[::-1].copy()


def sampler(window: int = 3, chunk: int = 2 * BLOCK, sample: float = 0.0) -> ChunkSampler:
    ids, lines, counts = text()
    result = ChunkSampler(ids, lines, counts)
    result.configure(window=window, sample=sample, chunk_size=chunk, num_negatives=6, negative_power=0.75, seed=3)
    return result


def pairs_of(chunk, window: int) -> list[tuple[int, int]]:
    """Positions (center, context) in the words of a chunk, read from its mask."""
    return [
        (block * BLOCK + row + window, block * BLOCK + column)
        for block, row, column in zip(*np.nonzero(chunk.mask), strict=True)
    ]


def chunk_of(window: int = 3):
    return next(iter(sampler(window).chunks(Position(0, 0, 0))))[2]


def dense(rows: list[Rows], size: int) -> torch.Tensor:
    total = torch.zeros(size, rows[0].grad.shape[1])
    for part in rows:
        total.index_add_(0, part.ids, part.grad)
    return total


def table(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


@pytest.mark.parametrize("window", [1, 3, 10, 20])
def test_blocks_and_unblock_are_adjoint(window):
    rows, grad = table(4 * BLOCK + 2 * window, 0), torch.randn(4, BLOCK + 2 * window, SIZE)
    assert torch.allclose((blocks(rows, BLOCK + 2 * window) * grad).sum(), (rows * unblock(grad)).sum(), atol=1e-3)


@pytest.mark.parametrize("window", [1, 3, 10])
@pytest.mark.parametrize("is_cbow", [False, True])
def test_negative_sampling_is_the_gradient_of_the_loss_of_single_pairs(window, is_cbow):
    chunk = chunk_of(window)
    inputs, outputs = table(WORDS, 1).requires_grad_(), table(WORDS, 2).requires_grad_()
    words, loss, count = torch.from_numpy(chunk.words), torch.zeros(()), 0

    def predict(v, target):
        noise = outputs[torch.from_numpy(chunk.negatives)]
        weight = NEGATIVES / len(chunk.negatives)
        return -F.logsigmoid(outputs[target] @ v) - weight * F.logsigmoid(-(noise @ v)).sum()

    pairs = pairs_of(chunk, window)
    if is_cbow:
        for center in sorted({center for center, _ in pairs}):
            contexts = [words[context] for other, context in pairs if other == center]
            loss, count = loss + predict(inputs[torch.stack(contexts)].mean(0), words[center]), count + 1
    else:
        for center, context in pairs:
            loss, count = loss + predict(inputs[words[center]], words[context]), count + 1
    loss.backward()
    scorer = NegativeSampling(WORDS, SIZE, NEGATIVES)
    scorer.table.copy_(outputs.detach())
    step = (cbow_step if is_cbow else skip_gram_step)(WordInputs(inputs.detach()), scorer, chunk, with_loss=True)
    assert count == float(step.pairs) > 0
    assert torch.allclose(step.loss, loss, rtol=1e-4)
    assert torch.allclose(dense([step.inputs], WORDS), inputs.grad, atol=1e-4)
    assert torch.allclose(dense(step.outputs, WORDS), outputs.grad, atol=1e-4)


@pytest.mark.parametrize("is_cbow", [False, True])
def test_hierarchical_softmax_is_the_gradient_of_the_loss_of_single_pairs(is_cbow):
    chunk, paths = chunk_of(3), huffman_paths(text()[2])
    inputs, nodes = table(WORDS, 1).requires_grad_(), table(WORDS - 1, 2).requires_grad_()
    words, loss = torch.from_numpy(chunk.words), torch.zeros(())

    def predict(v, target):
        path = [(int(n), float(s)) for n, s in zip(paths.nodes[target], paths.signs[target], strict=True) if s]
        return -sum(F.logsigmoid(sign * (nodes[node] @ v)) for node, sign in path)

    pairs = pairs_of(chunk, 3)
    if is_cbow:
        for center in sorted({center for center, _ in pairs}):
            contexts = [words[context] for other, context in pairs if other == center]
            loss = loss + predict(inputs[torch.stack(contexts)].mean(0), words[center])
    else:
        loss = sum(predict(inputs[words[center]], words[context]) for center, context in pairs)
    loss.backward()
    scorer = HierarchicalSoftmax(SIZE, paths)
    scorer.table.copy_(nodes.detach())
    step = (cbow_step if is_cbow else skip_gram_step)(WordInputs(inputs.detach()), scorer, chunk, with_loss=True)
    assert torch.allclose(step.loss, loss, rtol=1e-4)
    assert torch.allclose(dense([step.inputs], WORDS), inputs.grad, atol=1e-4)
    assert torch.allclose(dense(step.outputs, WORDS - 1), nodes.grad, atol=1e-4)


def test_probabilities_of_the_tree_sum_to_1_and_paths_are_optimal():
    counts = np.array([50, 20, 20, 9, 5, 5, 2, 1, 1])
    paths = huffman_paths(counts)
    scores = torch.randn(len(counts) - 1, generator=torch.Generator().manual_seed(0))
    signs = torch.from_numpy(paths.signs)
    log_probs = (F.logsigmoid(signs * scores[torch.from_numpy(paths.nodes)]) * signs.abs()).sum(1)
    assert float(log_probs.exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert int((counts * (paths.signs != 0).sum(1)).sum()) == 2 + 4 + 9 + 14 + 23 + 40 + 63 + 113  # joined pairs
    assert (paths.nodes[:, 0] == 0).all()  # all paths start at the root


def test_mean_length_of_codes_equals_the_heap_algorithm():
    import heapq

    counts = np.sort(np.random.default_rng(0).integers(1, 1000, 200))[::-1].copy()
    heap, cost = [int(count) for count in counts], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        cost += joined
        heapq.heappush(heap, joined)
    assert int((counts * (huffman_paths(counts).signs != 0).sum(1)).sum()) == cost


# ---- draws


def test_windows_stay_in_the_line_and_shrink_at_random():
    lines, made = text()[1], sampler(window=3)
    distances = Counter[int]()
    for _, _, chunk in made.chunks(Position(0, 0, 0)):
        for center, context in pairs_of(chunk, 3):
            distances[abs(center - context)] += 1
    assert set(distances) == {1, 2, 3}
    # expected: every distance d within lines, times (window - d + 1) / window
    expected = {d: 2 * int((lines[d:] == lines[:-d]).sum()) * (3 - d + 1) / 3 for d in (1, 2, 3)}
    assert all(abs(distances[d] - expected[d]) < 5 * math.sqrt(expected[d]) + 1 for d in expected)


def test_every_word_is_a_center_once_per_epoch_without_subsampling():
    ids, _, _ = text()
    seen = Counter[int]()
    for _, _, chunk in sampler().chunks(Position(0, 0, 0)):
        has_context = chunk.mask.any(2).reshape(-1)
        seen.update(chunk.words[3:-3][has_context].tolist())
    assert seen == Counter(ids.tolist())


def test_chunks_from_a_position_are_those_of_the_whole_epoch():
    whole = list(sampler(sample=0.05).chunks(Position(1, 0, 0)))
    rest = list(sampler(sample=0.05).chunks(whole[2][0]))
    assert len(rest) == len(whole) - 3
    for (position, share, chunk), (other_position, other_share, other) in zip(whole[3:], rest, strict=True):
        assert (position, share) == (other_position, other_share)
        assert all(np.array_equal(one, two) for one, two in zip(chunk, other, strict=True))


def test_frequent_words_are_kept_less_often():
    counts = np.array([1000, 100, 10])
    keep = keep_probabilities(counts, 0.01)
    ratio = 0.01 / (counts / 1110)
    assert keep == pytest.approx(np.minimum(1, np.sqrt(ratio) + ratio))
    assert (keep_probabilities(counts, 0.0) == 1).all()


def test_negative_samples_follow_the_power_of_counts():
    made = sampler(chunk=BLOCK)
    made.num_negatives = 4000
    drawn = np.concatenate([chunk.negatives for _, _, chunk in made.chunks(Position(0, 0, 0))])
    weights = made.counts**0.75
    expected = weights / weights.sum()
    assert np.bincount(drawn, minlength=WORDS) / len(drawn) == pytest.approx(expected, abs=0.01)


# ---- updates


def test_updates_add_rows_and_limit_pairs():
    rows = Rows(torch.tensor([1, 1, 2]), torch.ones(3, 2), torch.tensor([MAX_STEP / 0.5, MAX_STEP / 0.5, 1.0]))
    updates = RowUpdates(torch.zeros(4, 2))
    for _ in range(2):  # the counts start from 0 each time
        updates.descend([rows], 0.5)
    assert updates.table[:, 0].tolist() == [0.0, -1.0, -1.0, 0.0]  # 2 rows of half the gradient, and one of all of it


def test_subwords_are_means_and_share_the_gradient():
    ngrams = CharNgrams(3, 4, 50)
    words = ["night", "light", "a"]
    buckets, offsets = ngrams.of_words(words)
    rows = table(3 + 50, 0)
    inputs = SubwordInputs(rows.clone(), torch.from_numpy(buckets), torch.from_numpy(offsets))
    own = [[row, *(3 + bucket for bucket in ngrams.bucket_ids(word))] for row, word in enumerate(words)]
    assert torch.allclose(inputs.lookup(torch.tensor([2, 0])), torch.stack([rows[own[2]].mean(0), rows[own[0]].mean(0)]))
    inputs.descend(Rows(torch.tensor([0]), torch.ones(1, SIZE), torch.tensor([1.0])), 0.1)
    expected = rows.clone()
    expected.index_add_(0, torch.tensor(own[0]), torch.full((len(own[0]), SIZE), -0.1))
    assert torch.allclose(inputs.table, expected)


def test_ngrams_and_hashes_equal_those_of_gensim():
    # gensim 4.4: compute_ngrams("night", 3, 5), and compute_ngrams_bytes with ft_hash_bytes % 2000
    assert sorted(char_ngrams("night", 3, 5)) == sorted(
        ["<ni", "nig", "igh", "ght", "ht>", "<nig", "nigh", "ight", "ght>", "<nigh", "night", "ight>"]
    )
    assert CharNgrams(3, 4, 2000).bucket_ids("été") == [133, 1617, 1927, 363, 1535]
    assert char_ngrams("a", 1, 2) == ["<a", "a", "a>"]


@pytest.mark.parametrize(
    "options", [{}, {"cbow": True, "lr": 0.1}, {"loss": "hierarchical-softmax"}, {"max_char_ngram": 4, "buckets": 100}]
)
def test_words_in_the_same_contexts_get_similar_vectors(options):
    """cat and dog have the same neighbors, and so have sun and moon; training resumes exactly."""
    rng = np.random.default_rng(0)
    names = ["cat", "dog", "sun", "moon", "eats", "barks", "shines", "rises"]
    lines = [[0, 4, 5], [1, 4, 5], [2, 6, 7], [3, 6, 7]]
    ids = np.concatenate([lines[k] for k in rng.integers(0, 4, 300)]).astype(np.int32)
    numbers = np.repeat(np.arange(300), 3).astype(np.int32)
    config = Word2VecConfig.model_validate(
        {"vector_size": 8, "subsample": 0.0, "window": 2, "lr": 0.05, **options}
    ).with_defaults()
    counts = np.bincount(ids)
    model = Word2Vec(config, counts, names, seed=1)
    half = None
    for progress in model.train(ids, numbers, num_epochs=10, start=Position(0, 0, 0)):
        if progress.position.epoch == 4 and half is None:
            half = progress.position, {name: array.copy() for name, array in model.state().items()}
    vectors = F.normalize(model.vectors())
    assert vectors.isfinite().all()
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] and vectors[2] @ vectors[3] > vectors[1] @ vectors[3]
    again = Word2Vec(config, counts, names, seed=1)
    again.restore(half[1])
    for _ in again.train(ids, numbers, num_epochs=10, start=half[0]):
        pass
    assert torch.equal(again.vectors(), model.vectors())


def test_number_of_epochs_depends_on_the_text():
    config = Word2VecConfig.model_validate({})
    assert [config.epochs_for(words) for words in (0, 1_000_000, 5_000_000, 1_000_000_000)] == [30, 30, 10, 5]
    assert Word2VecConfig.model_validate({"num_epochs": 3}).epochs_for(1) == 3
