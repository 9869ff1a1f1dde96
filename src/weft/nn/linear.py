"""Linear layers, whose products oneDNN computes where it is faster than MKL.

On a CPU, torch leaves products of float32 matrices to MKL, which is made for processors of Intel. On processors of AMD with
AVX-512, oneDNN, which is a part of torch as well, takes about 0.9 of its time for large products (docs/experiments.md, "Speed
on a CPU"). Whether a product is computed by oneDNN depends on the processor and on the shapes alone, so that a training that is
resumed gives the same weights.

Shapes: N positions, I inputs, O outputs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# multiplications of a product from which oneDNN is used: it prepares each new shape for 0.5 ms, which smaller ones do not save
MIN_MULTIPLICATIONS = 1 << 25
# gradients of weights with more outputs than inputs: fewer rows or more numbers do not pay for the copy of the transpose
MIN_ROWS, MAX_TRANSPOSED = 512, 1 << 21
CPU_INFO = Path("/proc/cpuinfo")  # of Linux


@cache
def prefers_onednn() -> bool:
    """Whether oneDNN is faster than what torch uses: if that is MKL, on a processor of AMD with AVX-512."""
    has_both = torch._C.has_mkl and torch._C._has_mkldnn
    if not has_both or torch.backends.cpu.get_cpu_capability() != "AVX512" or not CPU_INFO.exists():
        return False
    return "AuthenticAMD" in CPU_INFO.read_text(encoding="utf-8")


def uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN computes x W^T: for large products of float32 on some processors."""
    is_large = x.device.type == "cpu" and x.numel() * len(weight) >= MIN_MULTIPLICATIONS
    return is_large and x.dtype == weight.dtype == torch.float32 and prefers_onednn()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, (..., O), for x (..., I), weight (O, I) and bias (O,), without a record for gradients."""
    if not uses_onednn(x, weight):
        return F.linear(x, weight, bias)
    if not (weight.is_contiguous() or weight.t().is_contiguous()):  # oneDNN would take a thousand times as long
        weight = weight.contiguous()
    bias = None if bias is None else bias.contiguous()  # it would be read as if it were
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of the weight W, (O, I), in x W^T: grad^T x, for grad (N, O) and x (N, I).

    oneDNN computes a wide matrix faster than MKL, a tall one as the transpose of a wide one, and a square one more slowly.
    """
    (num_rows, num_outputs), num_inputs = grad.shape, x.size(1)
    is_wide = num_outputs < num_inputs
    is_tall = num_outputs > num_inputs and num_rows >= MIN_ROWS and num_outputs * num_inputs <= MAX_TRANSPOSED
    if not (is_wide or is_tall) or not uses_onednn(grad, x.t()):
        return grad.t() @ x
    return product(grad.t(), x.t()) if is_wide else product(x.t(), grad.t()).t().contiguous()


class _Linear(torch.autograd.Function):
    """F.linear and its gradients by `product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            product(grad, weight.t()) if need_x else None,
            weight_gradient(rows, x.flatten(0, -2)) if need_weight else None,
            rows.sum(0) if need_bias else None,
        )


class OneDNNLinear(nn.Linear):
    """`nn.Linear`, faster in training on some processors."""

    def forward(self, x: Tensor) -> Tensor:
        # asked first, because a compiler cannot trace how the processor is found
        if torch.compiler.is_compiling() or not (self.training and torch.is_grad_enabled()):
            return F.linear(x, self.weight, self.bias)
        if torch.is_autocast_enabled("cpu") or not uses_onednn(x, self.weight):
            return F.linear(x, self.weight, self.bias)
        output: Tensor = _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module computes W x + b and nothing else: LoRA makes another class of a linear layer."""
    return type(module) in (nn.Linear, OneDNNLinear)
