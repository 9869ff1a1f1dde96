"""The loss that overwrites logits by their gradients equals the plain functions, and so does its kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from test_chunked_cross_entropy import DIM, POSITIONS, VOCAB_SIZE, gradients, inputs

from weft.nn import fused_cross_entropy as fused
from weft.nn import lm_head
from weft.nn.chunked_cross_entropy import Options
from weft.nn.lm_head import LMHead

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which PyTorch for GPUs brings along")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logit_softcap", [0.0, 3.0])
def test_loss_and_gradients_equal_the_plain_functions(label_smoothing, logit_softcap):
    for scale in (1.0, 100.0):  # logits that overflow without their maximum
        parameters, labels = inputs(scale)
        loss = fused.fused_cross_entropy(*parameters, labels, Options(label_smoothing, logit_softcap))
        exact = [part.detach().double().requires_grad_() for part in parameters]
        logits = F.linear(*exact)
        logits = logit_softcap * torch.tanh(logits / logit_softcap) if logit_softcap else logits
        plain = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
        torch.testing.assert_close(loss.double(), plain, rtol=1e-5, atol=1e-4 * scale)
        for actual, expected in zip(gradients(loss, parameters), gradients(plain, exact), strict=True):
            torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=2e-4 * scale)


@pytest.fixture
def is_fused(monkeypatch):
    monkeypatch.setattr(lm_head, "is_fused", lambda *_: True)
    monkeypatch.setattr(lm_head, "can_fuse", lambda *_: False)


@pytest.mark.parametrize("bias", [False, True])
def test_the_output_layer_uses_it_with_the_types_of_autocast(is_fused, bias):
    torch.manual_seed(1)
    head, x = LMHead(DIM, VOCAB_SIZE, logit_softcap=3.0, bias=bias), torch.randn(1, POSITIONS, DIM, requires_grad=True)
    targets = torch.randint(0, VOCAB_SIZE, (1, POSITIONS))
    parameters = [x, *head.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.loss(x, targets, 0.1)
        plain = F.cross_entropy(head.logits(x[0]), targets[0], reduction="none", label_smoothing=0.1)
    assert "FusedCrossEntropy" in str(loss.grad_fn.next_functions)
    torch.testing.assert_close(loss[0], plain)  # the same products, rounded alike
    for actual, expected in zip(gradients(loss, parameters), gradients(plain, parameters), strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("bias", [False, True])
def test_a_compiled_loss_in_half_precision_equals_the_plain_one(is_fused, bias):
    """Inputs are converted outside of the operator."""
    torch.manual_seed(1)
    head, x = LMHead(DIM, VOCAB_SIZE, logit_softcap=3.0, bias=bias), torch.randn(1, POSITIONS, DIM, requires_grad=True)
    targets = torch.randint(0, VOCAB_SIZE, (1, POSITIONS))
    parameters, factors = [x, *head.parameters()], torch.rand(1, POSITIONS)
    with torch.autocast("cpu", torch.bfloat16):
        plain = head.loss(x, targets, 0.1)
        loss = torch.compile(head.loss, backend="aot_eager", fullgraph=True)(x, targets, 0.1)
    assert torch.equal(loss, plain)
    for actual, expected in zip(gradients(loss * factors, parameters), gradients(plain * factors, parameters), strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, atol=1e-2, rtol=1e-2)  # rounded once more


@pytest.mark.parametrize("bias", [False, True])
def test_a_compiled_loss_is_one_graph_and_equals_the_plain_one(is_fused, bias):
    head, x = LMHead(DIM, VOCAB_SIZE, logit_softcap=3.0, bias=bias), torch.randn(1, POSITIONS, DIM, requires_grad=True)
    targets = torch.randint(0, VOCAB_SIZE, (1, POSITIONS))
    parameters = [x, *head.parameters()]
    expected = F.cross_entropy(head.logits(x[0]), targets[0], reduction="none")[None]
    compiled = torch.compile(head.loss, backend="aot_eager", fullgraph=True)
    loss = compiled(x, targets, 0.0)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, parameters), gradients(expected, parameters))


def test_it_is_for_large_vocabularies_in_half_precision_on_a_gpu(monkeypatch):
    monkeypatch.setattr(fused, "kernels", lambda: sys)
    hidden = torch.empty(4, 8, dtype=torch.bfloat16)
    assert not lm_head.is_fused(hidden, torch.empty(50_304, 8, dtype=torch.bfloat16))  # not on a GPU

    class OnGPU:
        is_cuda, device = True, torch.device("cuda")

        def __init__(self, vocab_size: int) -> None:
            self.vocab_size = vocab_size

        def __len__(self) -> int:
            return self.vocab_size

    assert lm_head.is_fused(hidden, OnGPU(50_304))
    assert not lm_head.is_fused(hidden, OnGPU(65)) and not lm_head.is_fused(hidden.float(), OnGPU(50_304))
    monkeypatch.setattr(fused, "kernels", lambda: None)
    assert not lm_head.is_fused(hidden, OnGPU(50_304))


CODE = """
import torch
from weft.nn import fused_cross_entropy, triton_cross_entropy

torch.manual_seed(0)
for rows, vocab_size, smoothing, cap, dtype in CASES:
    logits = (8 * torch.randn(rows, vocab_size, device=DEVICE)).to(dtype)
    labels = torch.randint(0, vocab_size, (rows,), device=DEVICE)
    labels[0] = vocab_size - 1
    expected_gradient, gradient = logits.clone(), logits.clone()
    expected = fused_cross_entropy.loss_and_gradient(expected_gradient, labels, smoothing, cap)
    loss = triton_cross_entropy.loss_and_gradient(gradient, labels, smoothing, cap, triton_cross_entropy.Launch(block=64))
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-5)
    exact = 1e-5 if dtype == torch.float32 else 4e-3  # bfloat16: neighbors may be rounded differently
    torch.testing.assert_close(gradient, expected_gradient, atol=exact, rtol=2 * exact)
    print("equal")
"""
CASES = """[
    (2, 64, 0.0, 0.0, torch.float32), (3, 150, 0.1, 0.0, torch.float32), (3, 150, 0.0, 15.0, torch.float32),
    (2, 70, 0.1, 60.0, torch.float32), (2, 5, 0.0, 0.0, torch.float32), (3, 200, 0.0, 15.0, torch.bfloat16),
]"""


@needs_triton
def test_the_kernel_equals_the_plain_function():
    environment = {**os.environ, **({} if DEVICE == "cuda" else {"TRITON_INTERPRET": "1"})}
    code = CODE.replace("CASES", CASES).replace("DEVICE", repr(DEVICE))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal\n" * 6
