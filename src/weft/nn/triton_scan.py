"""Kernels of `scan.py` for a GPU: each program takes some channels of one row through all positions.

Gates are computed inside, so that the inputs are read once and the outputs written once. Loads do not depend on the state: the
compiler starts those of the next positions (STAGES of them) before it needs them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Launch(NamedTuple):
    """How a kernel is started: channels per program, positions in flight, warps per program."""

    block: int = 64
    stages: int = 6
    warps: int = 1


DEFAULT = Launch()


@triton.jit
def _softplus(x):  # type: ignore[no-untyped-def]
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit  # type: ignore[untyped-decorator]
def _forward(projected, initial, y, length, dim, NUM_GATES: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < dim
    width = (NUM_GATES + 1) * dim
    source, target = projected + row * length * width + channels, y + row * length * dim + channels
    h = tl.load(initial + row * dim + channels, mask=mask, other=0.0).to(y.dtype.element_ty)
    for t in tl.range(0, length, num_stages=STAGES):
        position = source + t * width
        u = tl.load(position, mask=mask, other=0.0).to(y.dtype.element_ty)
        c = tl.load(position + NUM_GATES * dim, mask=mask, other=0.0).to(y.dtype.element_ty)
        if NUM_GATES == 2:
            new = tl.load(position + dim, mask=mask, other=0.0).to(y.dtype.element_ty)
            u = _softplus(-u) - _softplus(-new)
        h = h / (1.0 + tl.exp(u)) + c / (1.0 + tl.exp(-u))
        tl.store(target + t * dim, h, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, projected, initial, y, grad_projected, grad_initial, length, dim,
    NUM_GATES: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < dim
    width = (NUM_GATES + 1) * dim
    source, target = projected + row * length * width + channels, grad_projected + row * length * width + channels
    outputs, grads = y + row * length * dim + channels, grad + row * length * dim + channels
    first = tl.load(initial + row * dim + channels, mask=mask, other=0.0).to(y.dtype.element_ty)
    carry = tl.zeros([BLOCK], dtype=y.dtype.element_ty)
    for back in tl.range(0, length, num_stages=STAGES):
        t = length - 1 - back
        position = source + t * width
        u = tl.load(position, mask=mask, other=0.0).to(y.dtype.element_ty)
        c = tl.load(position + NUM_GATES * dim, mask=mask, other=0.0).to(y.dtype.element_ty)
        before = tl.load(outputs + tl.maximum(t - 1, 0) * dim, mask=mask, other=0.0)
        before = tl.where(t > 0, before, first)
        g = carry + tl.load(grads + t * dim, mask=mask, other=0.0).to(y.dtype.element_ty)
        place = target + t * width
        if NUM_GATES == 2:
            new = tl.load(position + dim, mask=mask, other=0.0).to(y.dtype.element_ty)
            forget = u
            u = _softplus(-forget) - _softplus(-new)
        update, keep = 1.0 / (1.0 + tl.exp(-u)), 1.0 / (1.0 + tl.exp(u))
        grad_u = g * (c - before) * update * keep
        if NUM_GATES == 2:
            tl.store(place, -grad_u / (1.0 + tl.exp(forget)), mask=mask)
            tl.store(place + dim, grad_u / (1.0 + tl.exp(new)), mask=mask)
        else:
            tl.store(place, grad_u, mask=mask)
        tl.store(place + NUM_GATES * dim, g * update, mask=mask)
        carry = g * keep
    tl.store(grad_initial + row * dim + channels, carry, mask=mask)


def forward(projected: Tensor, initial: Tensor, num_gates: int, launch: Launch = DEFAULT) -> Tensor:
    """h_1 to h_T, (B, T, D), at least in float32; projected (B, T, (n + 1) D), initial (B, D)."""
    rows, length, width = projected.shape
    dim = width // (num_gates + 1)
    y = projected.new_empty(rows, length, dim, dtype=torch.promote_types(projected.dtype, torch.float32))
    with torch.cuda.device_of(projected):  # type: ignore[no-untyped-call]
        _forward[rows, triton.cdiv(dim, launch.block)](
            projected.contiguous(), initial.contiguous(), y, length, dim,
            NUM_GATES=num_gates, BLOCK=launch.block, STAGES=launch.stages, num_warps=launch.warps,
        )  # fmt: skip
    return y


def backward(
    grad: Tensor, projected: Tensor, initial: Tensor, y: Tensor, num_gates: int, launch: Launch = DEFAULT
) -> tuple[Tensor, Tensor]:
    """The gradients of `projected` and `initial`, in their types."""
    rows, length, dim = y.shape
    grad_projected = torch.empty_like(projected, memory_format=torch.contiguous_format)
    grad_initial = torch.empty_like(initial, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(projected):  # type: ignore[no-untyped-call]
        _backward[rows, triton.cdiv(dim, launch.block)](
            grad.contiguous(), projected.contiguous(), initial.contiguous(), y, grad_projected, grad_initial, length, dim,
            NUM_GATES=num_gates, BLOCK=launch.block, STAGES=launch.stages, num_warps=launch.warps,
        )  # fmt: skip
    return grad_projected, grad_initial


def probe() -> None:
    """Compile and run the forward kernel once, so that a missing compiler is found before it is needed."""
    forward(torch.zeros(1, 2, 2, device="cuda"), torch.zeros(1, 1, device="cuda"), 1)
