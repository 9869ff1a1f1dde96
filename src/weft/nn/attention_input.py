"""From the projection of an attention layer to queries, keys and values, for training in half precision on a GPU. One kernel
normalizes and rotates queries and keys; in the backward pass, another one writes the gradients of all three where the matrix
product reads them. The compiler makes four kernels of it, which read and write three times as many bytes; the plain functions
are about twenty.

Equal to `SelfAttention.heads`, but for numbers that are not rounded between norm and rotation.

Shapes: B batch size, T positions, H heads, E head size, P stored rotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

NORM_EPS = torch.finfo(torch.float32).eps  # that of torch's RMSNorm


def attention_input(qkv: Tensor, table: Tensor, positions: Tensor, *, normalizes: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, H, T, E).

    Args:
        qkv: (B, T, 3, H, E), contiguous.
        table: The factors of rotations, (2, P, E), as `RotaryEmbedding` stores them.
        positions: (1 or B, T), below P.
        normalizes: Whether queries and keys are divided by the root of their mean square.
    """
    function: Any = _operator if torch.compiler.is_compiling() else _AttentionInput.apply
    q, k, v = function(qkv, table, positions.contiguous(), NORM_EPS if normalizes else 0.0)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


# ---- what the kernels compute, (B, T, H, E) each


def plain_forward(qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values. Without a norm, `eps` is 0."""
    cos, sin = table[:, positions][:, :, :, None, None]
    qk = qkv[:, :, :2].float()
    if eps:
        qk = qk * _inverse_norm(qk, eps)
    q, k = (qk * cos + _swap_halves(qk) * sin).to(qkv.dtype).unbind(2)
    return q.contiguous(), k.contiguous(), qkv[:, :, 2].clone()


def plain_backward(grads: Sequence[Tensor], qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> Tensor:
    """The gradients of `qkv`."""
    cos, sin = table[:, positions][:, :, :, None, None]
    grad_qk = torch.stack(list(grads[:2]), 2).float()
    grad_qk = grad_qk * cos + _swap_halves(grad_qk * sin)
    if eps:
        qk = qkv[:, :, :2].float()
        scale = _inverse_norm(qk, eps)
        normed = qk * scale
        grad_qk = scale * (grad_qk - normed * (grad_qk * normed).mean(-1, keepdim=True))
    return torch.cat([grad_qk.to(qkv.dtype), grads[2][:, :, None]], 2)


def _inverse_norm(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _swap_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([second, first], -1)


# ---- the kernels


def _forward(qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    if not qkv.is_cuda:
        return plain_forward(qkv, table, positions, eps)
    from weft.nn import triton_attention_input

    return triton_attention_input.forward(qkv, table, positions, eps)


def _backward(grads: tuple[Tensor, ...], qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> Tensor:
    if not qkv.is_cuda:
        return plain_backward(grads, qkv, table, positions, eps)
    from weft.nn import triton_attention_input

    return triton_attention_input.backward(grads, qkv, table, positions, eps)


class _AttentionInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(qkv, table, positions)
        ctx.eps = eps
        return _forward(qkv, table, positions, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor, None, None, None]:
        qkv, table, positions = ctx.saved_tensors
        return _backward((grad_q, grad_k, grad_v), qkv, table, positions, ctx.eps), None, None, None


# ---- the same as operators: torch.compile sees one node in each pass. Calling them imports the compiler, whoever calls


@torch.library.custom_op("weft::attention_input", mutates_args=())
def _operator(qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return _forward(qkv, table, positions, eps)


@_operator.register_fake
def _shapes(qkv: Tensor, table: Tensor, positions: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    batch_size, length, _, num_heads, width = qkv.shape
    q, k, v = (qkv.new_empty(batch_size, length, num_heads, width) for _ in range(3))
    return q, k, v


@torch.library.custom_op("weft::attention_input_backward", mutates_args=())
def _backward_operator(
    grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, qkv: Tensor, table: Tensor, positions: Tensor, eps: float
) -> Tensor:
    return _backward((grad_q, grad_k, grad_v), qkv, table, positions, eps)


@_backward_operator.register_fake
def _backward_shape(
    grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, qkv: Tensor, table: Tensor, positions: Tensor, eps: float
) -> Tensor:
    return torch.empty_like(qkv)


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor, None, None, None]:
    return _backward_operator(grad_q, grad_k, grad_v, *ctx.saved_tensors, ctx.eps), None, None, None


_operator.register_autograd(_differentiate, setup_context=_save_for_backward)
