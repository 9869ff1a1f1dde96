"""Kernels of `fused_swiglu.py` for a GPU, in float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 512, 2  # outputs of one position per program, warps per program


@triton.jit  # type: ignore[untyped-decorator]
def _load_halves(source, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The halves of the input for the outputs of a program; where its first half and its outputs are."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offsets, mask = 2 * width * row + columns, columns < width
    a = tl.load(source + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + offsets + width, mask=mask, other=0.0).to(tl.float32)
    return a, b, offsets, width * row + columns, mask


@triton.jit  # type: ignore[untyped-decorator]
def _forward(source, target, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    a, b, _, outputs, mask = _load_halves(source, width, BLOCK)
    tl.store(target + outputs, a * tl.sigmoid(a) * b, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(grad, source, target, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    a, b, offsets, outputs, mask = _load_halves(source, width, BLOCK)
    g = tl.load(grad + outputs, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(a)
    tl.store(target + offsets, g * b * sigmoid * (1.0 + a * (1.0 - sigmoid)), mask=mask)
    tl.store(target + offsets + width, g * a * sigmoid, mask=mask)


def forward(x: Tensor) -> Tensor:
    """(..., 2 D) to (..., D)."""
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], x.size(-1) // 2)
    _launch(_forward, (x, y), y)
    return y


def backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x (..., 2 D), contiguous."""
    grad, x = grad.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    _launch(_backward, (grad, x, grad_x), grad)
    return grad_x


def _launch(kernel: triton.JITFunction, tensors: tuple[Tensor, ...], outputs: Tensor) -> None:
    width = outputs.size(-1)
    with torch.cuda.device_of(outputs):  # type: ignore[no-untyped-call]
        kernel[outputs.numel() // width, triton.cdiv(width, BLOCK)](*tensors, width, BLOCK=BLOCK, num_warps=WARPS)
