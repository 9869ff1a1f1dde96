"""The Triton kernels of minGRU and minLSTM equal the loop over positions. Without a GPU, Triton interprets them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which PyTorch for GPUs brings along")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CODE = """
import torch
from weft.nn import triton_scan
from weft.nn.scan import scan_by_loop

torch.manual_seed(0)
for num_gates, length, dim, dtype, block in CASES:
    projected = (4 * torch.randn(2, length, (num_gates + 1) * dim, device=DEVICE)).to(dtype)
    projected[0, :, :2], projected[0, :, 2:4] = -80.0, 80.0
    initial = torch.randn(2, dim, device=DEVICE, dtype=torch.promote_types(dtype, torch.float32))
    leaves = [part.clone().requires_grad_() for part in (projected, initial)]
    expected = scan_by_loop(*leaves, num_gates)
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * grad).sum(), leaves)
    launch = triton_scan.Launch(block=block)
    y = triton_scan.forward(projected, initial, num_gates, launch)
    exact = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(y, expected.detach(), atol=exact, rtol=exact)
    # the loop's gradients of bfloat16 inputs are sums of rounded numbers
    tolerance = 0.05 if dtype == torch.bfloat16 else exact
    parts = triton_scan.backward(grad, projected, initial, y, num_gates, launch)
    for part, wanted in zip(parts, gradients, strict=True):
        assert part.dtype == wanted.dtype
        torch.testing.assert_close(part, wanted, atol=tolerance, rtol=tolerance)
    print("equal")
"""
CASES = """[
    (1, 1, 5, torch.float32, 64), (1, 9, 70, torch.float32, 32), (2, 7, 33, torch.float32, 32),
    (1, 6, 8, torch.float64, 64), (2, 6, 8, torch.float64, 64), (1, 5, 16, torch.bfloat16, 64), (2, 5, 16, torch.bfloat16, 64),
]"""


@needs_triton
def test_kernels_equal_the_loop_in_values_and_gradients():
    environment = {**os.environ, **({} if DEVICE == "cuda" else {"TRITON_INTERPRET": "1"})}
    code = CODE.replace("CASES", CASES).replace("DEVICE", repr(DEVICE))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal\n" * 7
