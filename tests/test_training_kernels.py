"""The kernels that compiled training uses on a GPU equal the plain functions. Without a GPU, Triton interprets them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from weft.nn import attention
from weft.nn.attention_input import attention_input
from weft.nn.positions import RotaryEmbedding

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which PyTorch for GPUs brings along")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def self_attention(*, normalizes: bool) -> attention.SelfAttention:
    torch.manual_seed(0)
    norm = nn.RMSNorm(8, elementwise_affine=False) if normalizes else None
    return attention.SelfAttention(16, num_heads=2, positions=RotaryEmbedding(8, num_stored=12), qk_norm=norm)


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_the_operator_equals_norm_and_rotation_in_values_and_gradients(normalizes, packed):
    layer = self_attention(normalizes=normalizes)
    qkv = torch.randn(2, 5, 3, 2, 8, requires_grad=True)
    positions = torch.tensor([[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]) if packed else torch.arange(5)[None]
    expected = layer.heads(qkv, positions, 5)
    actual = attention_input(qkv, layer.positions.stored_rotations(5), positions, normalizes=normalizes)
    gradients = [torch.randn_like(part) for part in expected]
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    ours, theirs = (torch.autograd.grad(parts, qkv, gradients)[0] for parts in (actual, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_compiled_layers_use_the_operators_and_give_the_same_gradients(monkeypatch):
    layer, feed_forward = self_attention(normalizes=True), attention.FeedForward(16, ffn_dim=32)
    x, weights = torch.randn(2, 5, 16), [*layer.parameters(), *feed_forward.parameters()]
    names = set[str]()

    def backend(graph, inputs):
        names.update(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    def output():
        return feed_forward(layer(x)[0])[0]

    expected = torch.autograd.grad(output().square().sum(), weights)
    monkeypatch.setattr(attention, "has_kernels", lambda _: torch.compiler.is_compiling())
    y = torch.compile(output, backend=backend, fullgraph=True)()
    assert any("weft.attention_input" in name for name in names) and any("weft.gelu" in name for name in names)
    for ours, theirs in zip(torch.autograd.grad(y.square().sum(), weights), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_nothing_changes_outside_of_compiled_training_on_a_gpu():
    assert not attention.has_kernels(torch.zeros(1, dtype=torch.bfloat16))
    gpu = type("OnGPU", (), {"is_cuda": True, "dtype": torch.bfloat16})()
    assert not attention.has_kernels(gpu)  # nothing is compiled


CODE = """
import torch
import torch.nn.functional as F
from weft.nn import attention_input, triton_attention_input, triton_gelu
from weft.nn.positions import RotaryEmbedding

torch.manual_seed(0)
for rows, length, heads, width, dtype, eps, is_packed in CASES:
    qkv = torch.randn(rows, length, 3, heads, width, device=DEVICE).to(dtype)
    table = RotaryEmbedding(width, num_stored=20).table.to(DEVICE)
    positions = torch.arange(length, device=DEVICE)[None]
    if is_packed:
        positions = torch.randint(0, 20, (rows, length), device=DEVICE)
    exact = 1e-5 if dtype == torch.float32 else 2e-2
    expected = attention_input.plain_forward(qkv, table, positions, eps)
    actual = triton_attention_input.forward(qkv, table, positions, eps)
    # gradients of attention may be in another order
    gradients = [torch.randn_like(part).transpose(1, 2).contiguous().transpose(1, 2) for part in expected]
    expected += (attention_input.plain_backward(gradients, qkv, table, positions, eps),)
    actual += (triton_attention_input.backward(gradients, qkv, table, positions, eps),)
    torch.testing.assert_close(actual, expected, atol=exact, rtol=exact)
    print("equal")
x = torch.cat([torch.linspace(-12, 12, 2999), torch.tensor([-1e30, 1e30])]).to(DEVICE)
exact, gradient = x.double().requires_grad_(), torch.randn(len(x), device=DEVICE)
expected = F.gelu(exact)
torch.testing.assert_close(triton_gelu.forward(x).double(), expected, atol=1e-6, rtol=1e-6)
slopes = torch.autograd.grad(expected, exact, gradient.double())[0]
torch.testing.assert_close(triton_gelu.backward(gradient, x).double(), slopes, atol=2e-6, rtol=2e-6)
print("equal")
"""
CASES = """[
    (2, 5, 3, 8, torch.float32, 1e-7, False), (1, 7, 2, 12, torch.float32, 1e-7, False),
    (3, 4, 1, 6, torch.float32, 0.0, True), (2, 9, 5, 64, torch.bfloat16, 1e-7, True),
]"""


@needs_triton
def test_the_kernels_equal_the_plain_functions():
    environment = {**os.environ, **({} if DEVICE == "cuda" else {"TRITON_INTERPRET": "1"})}
    code = CODE.replace("CASES", CASES).replace("DEVICE", repr(DEVICE))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal\n" * 5
