"""Packed weights give the same products as plain ones, and follow the weights when they change."""

from __future__ import annotations

import gc
import sys

import pytest
import torch
import torch.nn.functional as F

from weft.nn import packed_linear
from weft.nn.packed_linear import (
    MIN_PACKED_MULTIPLICATIONS,
    MIN_PACKED_NUMBERS,
    MIN_PACKED_ROWS,
    bind_linear,
    bind_sum,
    min_packed_rows,
)
from weft.training.adamw import AdamW
from weft.training.optimizers import Optimizers
from weft.training.param_groups import ParamGroup


@pytest.fixture
def onednn(monkeypatch):
    if not torch._C._has_mkldnn:
        pytest.skip("torch without oneDNN")
    monkeypatch.setattr(packed_linear, "prefers_onednn", lambda: True)


@pytest.mark.parametrize("has_bias", [True, False])
@torch.no_grad()
def test_packed_products_equal_plain_ones(onednn, has_bias):
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(MIN_PACKED_NUMBERS // 64, 64))
    bias = torch.nn.Parameter(torch.randn(len(weight))) if has_bias else None
    product, x = bind_linear(weight, bias), torch.randn(40, 64)
    for _ in range(2):
        expected = torch.nn.functional.linear(x, weight, bias)
        for rows in (1, 2, 5, 40):
            torch.testing.assert_close(product(x[:rows]), expected[:rows], atol=1e-4, rtol=1e-4)
        weight.mul_(2)  # as an optimizer does


@torch.no_grad()
def test_a_bias_with_gaps_and_a_layer_without_outputs(onednn):
    weight, x = torch.randn(512, 256), torch.randn(4, 256)
    for bias in (torch.randn(512, 2)[:, 0], torch.randn(1).expand(512)):
        torch.testing.assert_close(bind_linear(weight, bias)(x), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    assert bind_linear(weight[:0], None)(x).shape == (4, 0)


@pytest.mark.parametrize("is_twice_as_fast", [False, True])
def test_small_matrices_are_packed_for_many_rows_where_onednn_is_twice_as_fast(onednn, is_twice_as_fast, monkeypatch):
    monkeypatch.setattr(packed_linear, "is_twice_as_fast", lambda: is_twice_as_fast)
    small, large = torch.randn(64, 64), torch.randn(MIN_PACKED_NUMBERS // 64, 64)
    assert min_packed_rows(large) == MIN_PACKED_ROWS
    num_rows = MIN_PACKED_MULTIPLICATIONS // small.numel()
    assert min_packed_rows(small) == (num_rows if is_twice_as_fast else sys.maxsize)
    assert min_packed_rows(small[:0]) > num_rows
    for other in (large.double(), large.t(), large.to("meta")):
        assert min_packed_rows(other) == sys.maxsize
    calls: list[int] = []
    monkeypatch.setattr(packed_linear.PackedWeight, "product", lambda self, x, bias: calls.append(len(x)) or x @ small.t())
    for bind in (bind_linear, bind_sum):
        product = bind(small, None)
        for rows in (num_rows - 1, num_rows):
            product(torch.randn(rows, 64))
    assert calls == [num_rows] * (2 if is_twice_as_fast else 0)


@pytest.mark.parametrize("has_bias", [True, False])
@torch.no_grad()
def test_a_row_may_be_a_vector(has_bias):
    weight, x, residual = torch.randn(20, 30), torch.randn(30), torch.randn(20)
    bias, output = torch.randn(20) if has_bias else None, torch.full((20,), torch.nan)
    expected = F.linear(x[None], weight, bias)[0]
    torch.testing.assert_close(bind_linear(weight, bias)(x), expected)
    assert bind_linear(weight, bias)(x, output) is output
    torch.testing.assert_close(output, expected)
    copy = residual.clone()
    torch.testing.assert_close(bind_sum(weight, bias)(x), expected)
    torch.testing.assert_close(bind_sum(weight, bias)(x, residual), residual + expected)
    assert torch.equal(residual, copy)


def test_a_row_does_not_depend_on_the_others(onednn):
    weight = torch.randn(MIN_PACKED_NUMBERS // 64, 64)
    product, x = bind_linear(weight, None), torch.randn(40, 64)
    torch.testing.assert_close(product(x[7:9]), product(x)[7:9], atol=1e-5, rtol=1e-5)


def test_decoders_of_a_model_share_one_copy_which_goes_away_with_it(onednn):
    before = len(packed_linear._packed_weights)
    weight, biases = torch.nn.Parameter(torch.randn(512, 512)), torch.randn(2, 512)
    products, x = [bind_linear(weight, bias) for bias in biases], torch.randn(3, 512)
    for product, bias in zip(products, biases, strict=True):
        torch.testing.assert_close(product(x), torch.nn.functional.linear(x, weight, bias).detach(), atol=1e-4, rtol=1e-4)
    assert len(packed_linear._packed_weights) == before + 1
    del products, product, weight
    gc.collect()
    assert len(packed_linear._packed_weights) == before


def test_weights_made_in_inference_mode(onednn):
    """Their changes are not counted, so they are not packed."""
    with torch.inference_mode():
        weight = torch.randn(512, 512)
    product, x = bind_linear(weight, None), torch.randn(3, 512)
    product(x)
    with torch.inference_mode():
        weight.mul_(2)
    torch.testing.assert_close(product(x), x @ weight.t())


def test_an_optimizer_step_is_noticed(onednn):
    """Fused optimizers of torch do not count their changes."""
    layer, x = torch.nn.Linear(512, 512), torch.randn(3, 512)
    product = bind_linear(layer.weight, layer.bias)
    adamw = AdamW([ParamGroup(list(layer.parameters()), 0.1, 0.0)], beta2=0.99)
    optimizers = Optimizers([adamw], {layer.weight: "w", layer.bias: "b"})
    product(x)
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizers.step(1.0)
    torch.testing.assert_close(product(x), layer(x).detach(), rtol=1e-4, atol=1e-4)
