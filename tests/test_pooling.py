"""Pooling: worked examples, gradients, and independence of padding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from weft.nn.pooling import POOLINGS, AttentionPooling

DIM = 3
LENGTHS = [5, 1, 3, 2]
KEEP = torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def text(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)


def built(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return POOLINGS[name](DIM).double()


@pytest.mark.parametrize(
    ("name", "expected"), [("first", [1.0, -2.0]), ("last", [5.0, 0.0]), ("mean", [2.0, -1.0]), ("max", [5.0, 0.0])]
)
def test_two_features_of_three_tokens_by_hand(name, expected):
    y = torch.tensor([[[1.0, -2.0], [0.0, -1.0], [5.0, 0.0], [9.0, 9.0]]])
    keep = torch.tensor([[True, True, True, False]])
    assert POOLINGS[name](2)(y, keep).tolist() == [expected]


def test_attention_pooling_matches_its_equation():
    pool, y = built("attention"), text(2, 4, DIM)
    w, b, v = pool.hidden.weight.detach(), pool.hidden.bias.detach(), pool.query.weight[0].detach()
    for row in range(2):
        exps = [math.exp(float(v @ torch.tanh(w @ y[row, index] + b))) for index in range(4)]
        expected = sum(share / sum(exps) * y[row, index] for index, share in enumerate(exps))
        torch.testing.assert_close(pool(y)[row], expected)
    torch.testing.assert_close(pool.weights(y).sum(1), torch.ones(2, dtype=torch.double))


def test_attention_pooling_learns_to_select_a_token():
    """One token in ten, at a random position, determines the answer."""
    torch.manual_seed(0)
    y = 0.1 * torch.randn(64, 10, DIM)
    index, answer = torch.randint(10, (64,)), torch.randint(2, (64,)) * 2.0 - 1
    y[torch.arange(64), index, 0], y[torch.arange(64), index, 1] = 1.0, answer
    pool = AttentionPooling(DIM)
    optimizer = torch.optim.Adam(pool.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.soft_margin_loss(10 * pool(y)[:, 1], answer).backward()
        optimizer.step()
    assert (pool.weights(y).argmax(1) == index).all()


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("filler", [0.0, 1e6, -1e6, math.inf, math.nan])
def test_padding_never_matters(name, filler):
    pool, y = built(name), text(4, 5, DIM)
    padded = y.masked_fill(~KEEP[..., None], filler).requires_grad_()
    pooled = pool(padded, KEEP)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(pooled[row], pool(y[row : row + 1, :length])[0])
    pooled.square().sum().backward()
    assert padded.grad.isfinite().all() and not padded.grad[~KEEP].any()
    assert all(weight.grad.isfinite().all() for weight in pool.parameters())


@pytest.mark.parametrize("name", POOLINGS)
def test_full_token_mask_equals_no_mask(name):
    pool, y = built(name), text(4, 5, DIM)
    torch.testing.assert_close(pool(y, torch.ones(4, 5, dtype=torch.bool)), pool(y))


@pytest.mark.parametrize("name", POOLINGS)
def test_an_empty_row_gives_zeros_and_finite_gradients(name):
    pool, y = built(name), text(2, 3, DIM).requires_grad_()
    pooled = pool(y, torch.tensor([[True, True, False], [False, False, False]]))
    pooled.sum().backward()
    assert pooled[1].tolist() == [0.0] * DIM and pooled[0].any()
    assert y.grad.isfinite().all() and not y.grad[1].any()


@pytest.mark.parametrize("name", POOLINGS)
def test_gradients_match_numerical_ones(name):
    pool, y = built(name), text(4, 5, DIM).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: pool(y, KEEP), (y,))


@pytest.mark.parametrize("name", POOLINGS)
def test_half_precision_is_preserved(name):
    pool, y = built(name).bfloat16(), text(4, 5, DIM).bfloat16()
    pooled = pool(y, KEEP)
    assert pooled.dtype == torch.bfloat16 and pooled.isfinite().all()
