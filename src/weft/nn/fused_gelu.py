"""GELU for compiled training in half precision on a GPU, where torch's error function takes longer than memory.

Equal to `F.gelu` within 1e-6, far below the precision of the numbers that it is for.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("weft::gelu", mutates_args=())
def fused_gelu(x: Tensor) -> Tensor:
    """x P(X <= x), where X is normally distributed."""
    if not x.is_cuda:
        return F.gelu(x)
    from weft.nn import triton_gelu

    return triton_gelu.forward(x.contiguous())


@fused_gelu.register_fake
def _shape(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("weft::gelu_backward", mutates_args=())
def _backward(grad: Tensor, x: Tensor) -> Tensor:
    if not x.is_cuda:
        grad_x: Tensor = torch.ops.aten.gelu_backward(grad, x).contiguous()
        return grad_x
    from weft.nn import triton_gelu

    return triton_gelu.backward(grad.contiguous(), x.contiguous())


@_backward.register_fake
def _backward_shape(grad: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save_for_backward(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> Tensor:
    grad_x: Tensor = _backward(grad, *ctx.saved_tensors)
    return grad_x


fused_gelu.register_autograd(_differentiate, setup_context=_save_for_backward)
