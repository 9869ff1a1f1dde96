"""Kernels of `attention_input.py` for a GPU: each program takes some heads of some positions, in float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, WARPS = 32, 4  # heads per program, warps per program


@triton.jit  # type: ignore[untyped-decorator]
def _locate(num_rows, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each head of a program: its number, its position in all rows, and its number among the 3 H heads of that position."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, HALF)
    mask = (rows < num_rows)[:, None] & (columns < WIDTH // 2)[None, :]
    return rows, rows // (3 * HEADS), rows % (3 * HEADS), columns[None, :], mask


@triton.jit  # type: ignore[untyped-decorator]
def _load_halves(source, offsets, mask, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.load(source + offsets, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + offsets + WIDTH // 2, mask=mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit  # type: ignore[untyped-decorator]
def _load_rotation(  # type: ignore[no-untyped-def]
    table, positions, tokens, length, stride, num_stored, columns, mask, WIDTH: tl.constexpr
):  # fmt: skip
    """Cosines and sines (ROWS, HALF); 1 and 0, which change nothing, where the mask is False."""
    position = tl.load(
        positions + (tokens // length) * stride + tokens % length, mask=tl.max(mask.to(tl.int32), 1) > 0, other=0
    )
    position = position[:, None]
    cos = tl.load(table + position * WIDTH + columns, mask=mask, other=1.0)
    sin = tl.load(table + (num_stored + position) * WIDTH + WIDTH // 2 + columns, mask=mask, other=0.0)
    return cos, sin


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    qkv, table, positions, q, k, v, num_rows, length, stride, num_stored, eps,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, NORMALIZES: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    rows, tokens, heads, columns, mask = _locate(num_rows, HEADS, WIDTH, ROWS, HALF)
    is_value = (heads >= 2 * HEADS)[:, None]
    first, second = _load_halves(qkv, rows[:, None].to(tl.int64) * WIDTH + columns, mask, WIDTH)
    if NORMALIZES:
        squares = tl.sum(first * first + second * second, 1)
        scale = tl.where(is_value, 1.0, tl.rsqrt(squares / WIDTH + eps)[:, None])
        first, second = first * scale, second * scale
    rotated = mask & (is_value == 0)
    cos, sin = _load_rotation(table, positions, tokens, length, stride, num_stored, columns, rotated, WIDTH)
    first, second = first * cos - second * sin, second * cos + first * sin
    offsets = (tokens * HEADS + heads % HEADS)[:, None].to(tl.int64) * WIDTH + columns
    part = (heads // HEADS)[:, None]
    tl.store(q + offsets, first, mask=mask & (part == 0))
    tl.store(q + offsets + WIDTH // 2, second, mask=mask & (part == 0))
    tl.store(k + offsets, first, mask=mask & (part == 1))
    tl.store(k + offsets + WIDTH // 2, second, mask=mask & (part == 1))
    tl.store(v + offsets, first, mask=mask & (part == 2))
    tl.store(v + offsets + WIDTH // 2, second, mask=mask & (part == 2))


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad_q, grad_k, grad_v, qkv, table, positions, grad_qkv, num_rows, length, stride, num_stored, eps,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, NORMALIZES: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    rows, tokens, heads, columns, mask = _locate(num_rows, HEADS, WIDTH, ROWS, HALF)
    part = (heads // HEADS)[:, None]
    offsets = (tokens * HEADS + heads % HEADS)[:, None].to(tl.int64) * WIDTH + columns
    # two of the three are masked, and 0
    first, second = _load_halves(grad_q, offsets, mask & (part == 0), WIDTH)
    first_k, second_k = _load_halves(grad_k, offsets, mask & (part == 1), WIDTH)
    first_v, second_v = _load_halves(grad_v, offsets, mask & (part == 2), WIDTH)
    first, second = first + first_k + first_v, second + second_k + second_v
    rotated = mask & (part < 2)
    cos, sin = _load_rotation(table, positions, tokens, length, stride, num_stored, columns, rotated, WIDTH)
    first, second = first * cos + second * sin, second * cos - first * sin  # back
    offsets = rows[:, None].to(tl.int64) * WIDTH + columns
    if NORMALIZES:
        x_first, x_second = _load_halves(qkv, offsets, rotated, WIDTH)
        scale = tl.rsqrt(tl.sum(x_first * x_first + x_second * x_second, 1) / WIDTH + eps)[:, None]
        x_first, x_second = x_first * scale, x_second * scale
        along = (tl.sum(first * x_first + second * x_second, 1) / WIDTH)[:, None]  # what a change of the length would add
        first = tl.where(part < 2, scale * (first - along * x_first), first)
        second = tl.where(part < 2, scale * (second - along * x_second), second)
    tl.store(grad_qkv + offsets, first, mask=mask)
    tl.store(grad_qkv + offsets + WIDTH // 2, second, mask=mask)


def forward(qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, T, H, E); see `attention_input.py`."""
    q, k, v = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in qkv.unbind(2))
    _launch(_forward, (qkv, table, positions, q, k, v), qkv, table, positions, eps)
    return q, k, v


def backward(grads: tuple[Tensor, ...], qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> Tensor:
    """The gradients of `qkv`."""
    grad_qkv = torch.empty_like(qkv)
    tensors = (*(grad.contiguous() for grad in grads), qkv, table, positions, grad_qkv)
    _launch(_backward, tensors, qkv, table, positions, eps)
    return grad_qkv


def _launch(
    kernel: triton.JITFunction, tensors: tuple[Tensor, ...], qkv: Tensor, table: Tensor, positions: Tensor, eps: float
) -> None:
    batch_size, length, _, num_heads, width = qkv.shape
    num_rows = batch_size * length * 3 * num_heads
    stride = length if len(positions) > 1 else 0
    with torch.cuda.device_of(qkv):  # type: ignore[no-untyped-call]
        kernel[triton.cdiv(num_rows, ROWS),](
            *tensors, num_rows, length, stride, table.size(1), eps,
            HEADS=num_heads, WIDTH=width, NORMALIZES=eps > 0, ROWS=ROWS, HALF=triton.next_power_of_2(width // 2),
            num_warps=WARPS,
        )  # fmt: skip
