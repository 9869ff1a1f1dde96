"""The kernels that training uses on a GPU equal the plain functions. Without a GPU, Triton interprets them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weft.nn import attention, kernels
from weft.nn.attention_input import attention_input
from weft.nn.fused_swiglu import fused_swiglu
from weft.nn.kernels import is_compiled, is_recorded, load_kernels, recorded_kernels
from weft.nn.positions import RotaryEmbedding

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which PyTorch for GPUs brings along")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def self_attention(*, normalizes: bool) -> attention.SelfAttention:
    torch.manual_seed(0)
    norm = nn.RMSNorm(8, elementwise_affine=False) if normalizes else None
    return attention.SelfAttention(16, num_heads=2, positions=RotaryEmbedding(8, num_stored=12), qk_norm=norm)


@pytest.fixture
def not_loaded(monkeypatch):
    """No kernels have been looked for."""
    monkeypatch.setattr(kernels, "_loaded", {})


def use_kernels(monkeypatch, probe) -> ModuleType:
    """Put a module with this probe in the place of the kernels of scans."""
    module = ModuleType("weft.nn.triton_scan")
    module.probe = probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "weft.nn.triton_scan", module)
    return module


def test_without_triton_there_are_no_kernels(monkeypatch, not_loaded):
    monkeypatch.setitem(sys.modules, "weft.nn.triton_scan", None)
    assert load_kernels("triton_scan") is None


def test_kernels_are_probed_once(monkeypatch, not_loaded):
    probes = list[int]()
    module = use_kernels(monkeypatch, lambda: probes.append(1))
    assert load_kernels("triton_scan") is module and load_kernels("triton_scan") is module and probes == [1]


def test_kernels_that_cannot_be_compiled_are_reported_once(monkeypatch, not_loaded):
    def probe() -> None:
        raise RuntimeError("no C compiler")

    use_kernels(monkeypatch, probe)
    with pytest.warns(UserWarning, match="Triton cannot compile kernels; training is slower without them: no C compiler"):
        assert load_kernels("triton_scan") is None
    assert load_kernels("triton_scan") is None  # warnings are errors


def test_compiled_code_does_not_look_for_kernels(monkeypatch, not_loaded):
    module = use_kernels(monkeypatch, lambda: None)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert load_kernels("triton_scan") is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    assert load_kernels("triton_scan") is module
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert load_kernels("triton_scan") is module


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
    monkeypatch.setattr(attention, "is_compiled", lambda _: torch.compiler.is_compiling())
    y = torch.compile(output, backend=backend, fullgraph=True)()
    assert any("weft.attention_input" in name for name in names) and any("weft.gelu" in name for name in names)
    for ours, theirs in zip(torch.autograd.grad(y.square().sum(), weights), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


class OnGPU:
    """What the choice of kernels asks a tensor for."""

    is_cuda, dtype = True, torch.bfloat16


def test_kernels_are_for_training_in_half_precision_on_a_gpu(monkeypatch):
    gpu: Any = OnGPU()
    with recorded_kernels():
        assert is_recorded(gpu) and not is_compiled(gpu)
        for on_cpu in (torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1)):
            assert not is_recorded(on_cpu)
        with torch.no_grad():
            assert not is_recorded(gpu)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert is_compiled(gpu) and not is_recorded(gpu)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
        with recorded_kernels():
            pass
        assert is_recorded(gpu)
    assert not is_recorded(gpu) and not is_compiled(gpu)


def test_recorded_layers_use_kernels_and_give_the_same_gradients_without_importing_the_compiler():
    """In a process of its own, since other tests import the compiler."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LAYERS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] ['_AttentionInputBackward', '_SwiGLUBackward'] []\n"


LAYERS = """
import sys
import torch
from torch import nn
from weft.nn import attention
from weft.nn.positions import RotaryEmbedding

torch.manual_seed(0)
positions, norm = RotaryEmbedding(8, num_stored=12), nn.RMSNorm(8, elementwise_affine=False)
layer = attention.SelfAttention(16, num_heads=2, positions=positions, qk_norm=norm)
feed_forward = attention.FeedForward(16, ffn_dim=24, activation="swiglu")
x, weights = torch.randn(2, 5, 16), [*layer.parameters(), *feed_forward.parameters()]

def names(node, found):
    if node is not None and node not in found:
        found.add(node)
        for parent, _ in node.next_functions:
            names(parent, found)
    return sorted({each.name() for each in found if each.name() in ("_AttentionInputBackward", "_SwiGLUBackward")})

results = []
for is_recorded in (False, True):
    attention.is_recorded = lambda x: is_recorded
    y = feed_forward(layer(x)[0])[0]
    print(names(y.grad_fn, set()), end=" ")
    results.append((y, *torch.autograd.grad(y.square().sum(), weights)))
for ours, theirs in zip(*results, strict=True):
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swiglu_equals_the_plain_layer_in_values_and_gradients(dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 10, requires_grad=True)
    gradient = torch.randn(2, 3, 5)
    expected = attention.SwiGLU()(x)
    actual = fused_swiglu(x.to(dtype)).float()
    exact = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual, expected, atol=exact, rtol=exact)
    ours, theirs = (torch.autograd.grad(y, x, gradient)[0] for y in (actual, expected))
    torch.testing.assert_close(ours, theirs, atol=exact, rtol=exact)


def test_squared_relu_under_autocast_has_the_numbers_of_float32_in_half_of_the_bytes():
    torch.manual_seed(0)
    x = torch.randn(1000, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(1000, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        actual = attention.SquaredReLU()(x)
    expected = F.relu(x).float().square().to(torch.bfloat16)
    assert actual.dtype == torch.bfloat16
    ours, theirs = (torch.autograd.grad(y, x, gradient)[0] for y in (actual, expected))
    assert torch.equal(actual, expected) and torch.equal(ours, theirs)
    assert attention.SquaredReLU()(torch.zeros(3, device="meta")).shape == (3,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squared_relu_has_the_same_numbers_in_recorded_steps(monkeypatch, dtype):
    torch.manual_seed(0)
    x, gradient = torch.randn(2, 1000, dtype=dtype).requires_grad_(), torch.randn(2, 1000, dtype=dtype)
    results = []
    for recorded in (False, True):
        monkeypatch.setattr(attention, "is_recorded", lambda x, recorded=recorded: recorded)
        y = attention.SquaredReLU()(x)
        assert ("_SquaredReLU" in type(y.grad_fn).__name__) == recorded
        results.append((y, *torch.autograd.grad(y, x, gradient)))
    (plain, plain_grad), (y, grad) = results
    assert torch.equal(y, plain) and torch.equal(grad, plain_grad)


CODE = """
import torch
import torch.nn.functional as F
from weft.nn import attention_input, fused_swiglu, triton_attention_input, triton_gelu, triton_swiglu
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
for shape, dtype in (((3, 5, 14), torch.float32), ((2, 1300), torch.bfloat16), ((1, 2, 1024), torch.bfloat16)):
    x, exact = torch.randn(shape, device=DEVICE).to(dtype), 1e-5 if dtype == torch.float32 else 2e-2
    y = triton_swiglu.forward(x)
    gradient = torch.randn_like(y).transpose(0, -1).contiguous().transpose(0, -1)
    torch.testing.assert_close(y, fused_swiglu.plain_forward(x), atol=exact, rtol=exact)
    expected = fused_swiglu.plain_backward(gradient, x)
    torch.testing.assert_close(triton_swiglu.backward(gradient, x), expected, atol=exact, rtol=exact)
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
    assert done.stdout == "equal\n" * 6
