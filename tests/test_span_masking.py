"""Span masking: span lengths, number and positions of masked tokens, and their replacements."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
import torch
from torch import Tensor

from weft.tasks.masked_lm.objective import Masking, mask_tokens, maskable, span_lengths

WORDS = 50
MASK = WORDS
SPANS = Masking(MASK, spans=True)


def rows(lengths: list[int], *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Padded rows of <s>, the given number of tokens, and </s>."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(len(lengths), max(lengths) + 2, dtype=torch.long)
    for row, length in enumerate(lengths):
        inner = torch.randint(3, WORDS, (length,), generator=generator)
        tokens[row, : length + 2] = torch.cat([torch.tensor([1]), inner, torch.tensor([2])])
    return tokens, torch.arange(tokens.size(1)) < torch.tensor(lengths)[:, None] + 2


def runs(row: Tensor) -> list[int]:
    """Lengths of the runs of selected tokens."""
    return [len(list(group)) for hit, group in groupby(row.tolist()) if hit]


def test_span_lengths_are_geometric_up_to_ten():
    """Probabilities 0.2 * 0.8 ** (n - 1), normalized; the mean is SpanBERT's 3.8."""
    shares = np.array([0.2 * 0.8**index for index in range(10)])
    shares /= shares.sum()
    even = span_lengths((torch.arange(100_000) + 0.5) / 100_000)
    assert np.bincount(even.numpy(), minlength=11)[1:] / 100_000 == pytest.approx(shares, abs=2e-5)
    assert float(even.double().mean()) == pytest.approx(3.8, abs=0.01)
    edges = span_lengths(torch.tensor([0.0, 1.0 - 2**-24, 1.0]))
    assert edges.tolist() == [1, 10, 10]


def test_masked_fraction_equals_that_of_token_masking():
    tokens, keep = rows([1, 3, 10, 40, 0, 200])
    for share in (0.15, 0.4, 1.0):
        chosen = mask_tokens(tokens, keep, SPANS._replace(mask_prob=share)).targets_mask
        assert chosen.sum(1).tolist() == [max(1, round(share * n)) if n else 0 for n in (1, 3, 10, 40, 0, 200)]
        assert not (chosen & ~maskable(tokens, keep)).any()


def test_masked_runs_are_as_long_as_spans():
    """Compared with an independent simulation: consecutive spans on a ring, in random order, until enough tokens are masked."""
    tokens, keep = rows([300] * 200)
    torch.manual_seed(0)
    chosen = mask_tokens(tokens, keep, SPANS).targets_mask
    actual = [length for row in chosen for length in runs(row)]
    assert np.mean(actual) == pytest.approx(np.mean(simulated(300, 45, 150)), rel=0.06)
    alone = mask_tokens(tokens, keep, Masking(MASK)).targets_mask
    assert np.mean([length for row in alone for length in runs(row)]) < 1.3


def simulated(size: int, num_masked: int, texts: int) -> list[int]:
    random = np.random.default_rng(0)
    shares = 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()
    results: list[int] = []
    for _ in range(texts):
        ring = np.concatenate([np.full(1 + random.choice(10, p=shares), index) for index in range(size)])[:size]
        hit = np.zeros(size, dtype=bool)
        for span in random.permutation(ring[-1] + 1):
            places = np.flatnonzero(ring == span)[: num_masked - int(hit.sum())]
            hit[places] = True
        results += runs(torch.from_numpy(np.roll(hit, random.integers(size))))
    return results


@pytest.mark.parametrize("size", [6, 20])
def test_every_position_has_the_same_probability(size):
    tokens, keep = rows([size] * 10_000)
    torch.manual_seed(3)
    often = mask_tokens(tokens, keep, SPANS._replace(mask_prob=0.3)).targets_mask.double().mean(0)[1:-1]
    assert often.numpy() == pytest.approx(round(0.3 * size) / size, abs=0.02)


def test_spans_are_whole_words_and_only_the_last_is_truncated():
    begins = torch.rand(WORDS + 1, generator=torch.Generator().manual_seed(1)) < 0.4
    tokens, keep = rows([60] * 200, seed=2)
    torch.manual_seed(0)
    chosen = mask_tokens(tokens, keep, Masking(MASK, 0.2, begins, True)).targets_mask
    assert (chosen.sum(1) == 12).all()
    torn = 0
    for row, hit in zip(tokens, chosen, strict=True):
        inside = slice(1, -1)
        word = torch.cumsum(begins[row[inside]], 0)
        hits = [hit[inside][word == number].unique().numel() for number in word.unique()]
        torn += sum(count > 1 for count in hits)
    assert 0 < torn <= 200  # at most one per text


def test_replacement_is_chosen_per_span():
    """80% of spans are masked, 10% are replaced by other tokens, 10% stay: the same choice within a span."""
    tokens, keep = rows([2000] * 10)
    torch.manual_seed(0)
    actual = mask_tokens(tokens, keep, SPANS)
    hidden = (actual.tokens == MASK)[actual.targets_mask].double()
    assert hidden.mean() == pytest.approx(0.8, abs=0.04)
    changes = total = 0
    for row, hit in zip(actual.tokens == MASK, actual.targets_mask, strict=True):
        pairs = hit[1:] & hit[:-1]
        changes, total = changes + int((row[1:] != row[:-1])[pairs].sum()), total + int(pairs.sum())
    assert changes / total < 0.1  # with token-wise choices it would be 0.32; adjacent spans may differ


def test_masks_follow_the_generator():
    tokens, keep = rows([100, 30])
    one, two = (mask_tokens(tokens, keep, SPANS, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one.tokens, two.tokens) and torch.equal(one.targets_mask, two.targets_mask)
    torch.manual_seed(1)
    first, second = (mask_tokens(tokens, keep, SPANS).targets_mask for _ in range(2))
    assert not torch.equal(first, second)


def test_eos_of_the_first_text_is_never_masked():
    tokens, keep = rows([30] * 50)
    tokens[:, 12] = 2
    chosen = mask_tokens(tokens, keep, SPANS._replace(mask_prob=0.9)).targets_mask
    assert not chosen[:, 12].any() and (chosen.sum(1) == round(0.9 * 29)).all()
