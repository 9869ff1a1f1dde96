"""Linear layers, whose products oneDNN computes where it is faster than MKL.

On a CPU, torch leaves products of float32 matrices to MKL, which is made for processors of Intel. On those of AMD, oneDNN,
which is a part of torch as well, takes 0.9 of its time for large products, and less than half from Zen 5 on, where MKL uses
half of the width of the units (docs/experiments.md, "Speed on a CPU"). The choice depends on the processor and on the shapes
alone, so that a training that is resumed gives the same weights.

Shapes: N positions, I inputs, O outputs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

# multiplications of a product from which oneDNN is used: it prepares each new shape for 0.2 to 0.5 ms, which smaller ones do
# not save, unless many have the same shapes and are twice as fast
MIN_MULTIPLICATIONS, MIN_REPEATED = 1 << 25, 1 << 21
CPU_INFO = Path("/proc/cpuinfo")  # of Linux
MAX_COPIED = 1.5  # numbers to copy for the gradient of a weight, relative to those for its transpose
ZEN_5 = 26


@cache
def amd_family() -> int:
    """The family of a processor of AMD: 23 is Zen to Zen 2, 25 Zen 3 and Zen 4, 26 Zen 5. Of others 0."""
    text = CPU_INFO.read_text(encoding="utf-8") if CPU_INFO.exists() else ""
    family = re.search(r"^cpu family\s*: (\d+)$", text, re.MULTILINE)
    return int(family[1]) if family and "AuthenticAMD" in text else 0


@cache
def prefers_onednn() -> bool:
    """Whether oneDNN is faster than what torch uses: if that is MKL, on a processor of AMD."""
    has_both = torch._C.has_mkl and torch._C._has_mkldnn
    return has_both and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and amd_family() > 0


@cache
def is_twice_as_fast() -> bool:
    """Whether oneDNN takes half of the time of MKL, which uses vectors of 256 bits on processors of AMD: if units have 512."""
    return prefers_onednn() and torch.backends.cpu.get_cpu_capability() == "AVX512" and amd_family() >= ZEN_5


def uses_onednn(x: Tensor, weight: Tensor, *, repeats: bool = False) -> bool:
    """Whether oneDNN computes x W^T: for large products of float32 on some processors; smaller ones, if their shapes repeat."""
    # asked first, because a compiler cannot trace how the processor is found
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32:
        return False
    minimum = MIN_REPEATED if repeats and is_twice_as_fast() else MIN_MULTIPLICATIONS
    return x.numel() * weight.size(0) >= minimum and prefers_onednn()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, repeats: bool = False) -> Tensor:
    """x W^T + b, (..., O), for x (..., I), weight (O, I) and bias (O,), without a record for gradients."""
    return _product(x, weight, bias) if uses_onednn(x, weight, repeats=repeats) else F.linear(x, weight, bias)


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of the weight W, (O, I), in x W^T: grad^T x, for grad (N, O) and x (N, I)."""
    return _weight_gradient(grad, x) if uses_onednn(grad.t(), x.t()) else grad.t() @ x


# ---- the same by oneDNN


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not (weight.is_contiguous() or weight.t().is_contiguous()):  # oneDNN would take a thousand times as long
        weight = weight.contiguous()
    bias = None if bias is None else bias.contiguous()  # it would be read as if it were
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    # the rows of the first factor must be contiguous, so it is copied
    (num_rows, num_outputs), num_inputs = grad.shape, x.size(1)
    copied, copied_of_transpose = num_rows * num_outputs, num_inputs * (num_rows + num_outputs)
    if copied > MAX_COPIED * copied_of_transpose:
        return transposed(_product(transposed(x), grad.t()))
    return _product(transposed(grad), x.t())


def transposed(x: Tensor) -> Tensor:
    """The transpose of a matrix (N, M), contiguous: what a shuffle of the channels of a single pixel is. torch shuffles with
    vector instructions, in a third of the time that its copy takes."""
    num_rows, num_columns = x.shape
    if x.stride(0) == 1:
        return x.t().contiguous()
    if not x.numel():
        return x.new_empty(num_columns, num_rows)
    pixel = x.contiguous().view(1, 1, 1, -1).permute(0, 3, 1, 2)  # channels last, for which torch has that function
    return torch.native_channel_shuffle(pixel, num_rows).view(num_columns, num_rows)


class _Linear(torch.autograd.Function):
    """F.linear and its gradients, three products with equally many multiplications, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            _product(grad, weight.t()) if need_x else None,
            _weight_gradient(rows, x.flatten(0, -2)) if need_weight else None,
            rows.sum(0) if need_bias else None,
        )


def _is_watched() -> bool:
    """Whether torch traces, transforms (vmap, forward-mode gradients) or counts operations, and needs those that it knows."""
    is_transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return is_transformed or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`product`, with gradients if they are enabled."""
    if torch.is_autocast_enabled("cpu") or not uses_onednn(x, weight) or _is_watched():
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _product(x, weight, bias)
    output: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return output


class OneDNNLinear(nn.Linear):
    """`nn.Linear`, faster on some processors: in training, and without gradients where it is worth the new shapes."""

    def forward(self, x: Tensor) -> Tensor:
        is_worth = self.training if torch.is_grad_enabled() or torch.compiler.is_compiling() else is_twice_as_fast()
        return linear(x, self.weight, self.bias) if is_worth else F.linear(x, self.weight, self.bias)


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module computes W x + b and nothing else: LoRA makes another class of a linear layer."""
    return type(module) in (nn.Linear, OneDNNLinear)
