"""SwiGLU in one kernel each way, for recorded training in half precision on a GPU. Equal to `SwiGLU`, but for numbers that are
not rounded between its functions; the plain backward pass writes the gradients of both halves, and then copies them together.

Shapes: D hidden size of the feed-forward layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def fused_swiglu(x: Tensor) -> Tensor:
    """(..., 2 D) to silu(a) * b (..., D), where a and b are the halves of x."""
    y: Tensor = _SwiGLU.apply(x)  # type: ignore[no-untyped-call]
    return y


def plain_forward(x: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return (F.silu(a) * b).to(x.dtype)


def plain_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x."""
    a, b = x.float().chunk(2, dim=-1)
    sigmoid = torch.sigmoid(a)
    grad_a = grad * b * sigmoid * (1 + a * (1 - sigmoid))
    return torch.cat([grad_a, grad * a * sigmoid], dim=-1).to(x.dtype)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        if not x.is_cuda:
            return plain_forward(x)
        from weft.nn import triton_swiglu

        return triton_swiglu.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if not x.is_cuda:
            return plain_backward(grad, x)
        from weft.nn import triton_swiglu

        return triton_swiglu.backward(grad, x)
