"""The fused output layer and loss of training on a CPU equals the plain functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from weft.nn import linear_cross_entropy as fused
from weft.nn.lm_head import LMHead

POSITIONS, DIM, VOCAB_SIZE = 37, 12, 50


def gradients(loss: torch.Tensor, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of a sum in which every position has another weight, and some have none, as padding."""
    weights = torch.linspace(-1, 2, POSITIONS).reshape(loss.shape) * (torch.arange(POSITIONS).reshape(loss.shape) % 3 > 0)
    return list(torch.autograd.grad((loss * weights.to(loss.dtype)).sum(), parameters))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_logits", [1, 4 * VOCAB_SIZE, 1 << 22])
@pytest.mark.parametrize("scale", [1.0, 100.0])  # logits that overflow without their maximum
def test_loss_and_gradients_equal_the_plain_functions(monkeypatch, label_smoothing, chunk_logits, scale):
    monkeypatch.setattr(fused, "CHUNK_LOGITS", chunk_logits)
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, generator=generator).mul_(scale if len(shape) > 1 else 1.0).requires_grad_()
        for shape in ((POSITIONS, DIM), (VOCAB_SIZE, DIM), (VOCAB_SIZE,))
    )
    labels = torch.randint(0, VOCAB_SIZE, (POSITIONS,), generator=generator)
    loss = fused.linear_cross_entropy(x, weight, bias, labels, label_smoothing)
    # the exact values, in float64
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias)]
    plain = F.cross_entropy(F.linear(*exact), labels, reduction="none", label_smoothing=label_smoothing)
    torch.testing.assert_close(loss.double(), plain, rtol=1e-5, atol=1e-4 * scale)
    for actual, expected in zip(gradients(loss, [x, weight, bias]), gradients(plain, exact), strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=2e-4 * scale)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_head_uses_it_for_many_logits(monkeypatch, has_bias, frozen):
    torch.manual_seed(1)
    head, x = LMHead(DIM, VOCAB_SIZE, bias=has_bias), torch.randn(1, POSITIONS, DIM, requires_grad=True)
    head.requires_grad_(not frozen)
    targets = torch.randint(0, VOCAB_SIZE, (1, POSITIONS))
    parameters = [x, *(parameter for parameter in head.parameters() if parameter.requires_grad)]
    plain = head.loss(x, targets, 0.1)
    assert not fused.can_fuse(x[0], head.weight)
    monkeypatch.setattr(fused, "MIN_LOGITS", POSITIONS * VOCAB_SIZE)
    assert fused.can_fuse(x[0], head.weight)
    fast = head.loss(x, targets, 0.1)
    torch.testing.assert_close(fast, plain)
    for actual, expected in zip(gradients(fast, parameters), gradients(plain, parameters), strict=True):
        torch.testing.assert_close(actual, expected)


def test_other_dtypes_and_softcaps_take_the_plain_functions(monkeypatch):
    monkeypatch.setattr(fused, "MIN_LOGITS", 1)
    x, targets = torch.randn(1, POSITIONS, DIM), torch.randint(0, VOCAB_SIZE, (1, POSITIONS))
    assert not fused.can_fuse(x[0].double(), torch.zeros(VOCAB_SIZE, DIM).double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fused.can_fuse(x[0], torch.zeros(VOCAB_SIZE, DIM))
    assert fused.can_fuse(x[0], torch.zeros(DIM, DIM)) and not fused.can_fuse(x[0], torch.zeros(DIM - 1, DIM))
    head = LMHead(DIM, VOCAB_SIZE, logit_softcap=2.0)
    expected = F.cross_entropy(head.logits(x[0]), targets[0], reduction="none")
    torch.testing.assert_close(head.loss(x, targets)[0], expected)
