"""Kernels of `fused_gelu.py` for a GPU.

With z = |x| / sqrt(2) and t = 1 / (1 + 0.3275911 z) (Abramowitz and Stegun 1964, 7.1.26; error below 1.5e-7):

    erf(z) = 1 - (a_1 t + a_2 t^2 + ... + a_5 t^5) exp(-z^2)

The derivative of GELU has the same exponential.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 2048, 8  # numbers per program, warps per program


@triton.jit
def _cdf_and_exponential(x):  # type: ignore[no-untyped-def]
    """P(X <= x) of a normal distribution, and exp(-x^2 / 2)."""
    exponential = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))  # 0.3275911 / sqrt(2)
    series = 1.061405429 * t - 1.453152027
    series = series * t + 1.421413741
    series = series * t - 0.284496736
    series = series * t + 0.254829592
    tail = 0.5 * series * t * exponential  # of the side of x
    return tl.where(x > 0, 1.0 - tail, tail), exponential


@triton.jit  # type: ignore[untyped-decorator]
def _forward(source, target, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + offsets, mask=offsets < size, other=0.0).to(tl.float32)
    cdf, _ = _cdf_and_exponential(x)
    tl.store(target + offsets, x * cdf, mask=offsets < size)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(grad, source, target, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + offsets, mask=offsets < size, other=0.0).to(tl.float32)
    g = tl.load(grad + offsets, mask=offsets < size, other=0.0).to(tl.float32)
    cdf, exponential = _cdf_and_exponential(x)
    tl.store(target + offsets, g * (cdf + 0.3989422804 * x * exponential), mask=offsets < size)  # 1 / sqrt(2 pi)


def forward(x: Tensor) -> Tensor:
    """GELU of a contiguous tensor."""
    y = torch.empty_like(x)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _forward[triton.cdiv(x.numel(), BLOCK),](x, y, x.numel(), BLOCK=BLOCK, num_warps=WARPS)
    return y


def backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x."""
    grad_x = torch.empty_like(x)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _backward[triton.cdiv(x.numel(), BLOCK),](grad, x, grad_x, x.numel(), BLOCK=BLOCK, num_warps=WARPS)
    return grad_x
