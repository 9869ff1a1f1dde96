"""LSTMs in float16 on a GPU, where cuDNN keeps the recurrent weights in registers from step to step.

cuDNN has such persistent kernels for float16 only, for one layer at a time; they take half the time of its others. Small
gradients underflow in float16, so gradients are scaled to its range in the backward pass, as a power of two, and scaled back.

Shapes: B batch size, T sequence length, D hidden size, I input size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_ROWS, MAX_DIM = 128, 1024  # beyond that torch chooses another kernel
ROWS, FEATURES = 8, 128  # rows, and features of inputs and outputs, must be multiples of these
LARGEST = 0.25  # of a gradient of the outputs: the sum over 128 x 1,000 positions, each times an h below 1, stays finite


def has_persistent_kernel(x: Tensor, dim: int) -> bool:
    """Whether a float16 LSTM of this size over x (B, T, I) has a persistent kernel on this GPU."""
    if not x.is_cuda or dim % FEATURES or dim > MAX_DIM or x.size(0) > MAX_ROWS:
        return False
    major, minor = torch.cuda.get_device_capability(x.device)
    return major >= 8 and minor != 6


def run_persistent(x: Tensor, state: tuple[Tensor, Tensor] | None, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    """One layer in float16.

    Args:
        x: (B, T, I).
        state: h and c, each (B, D).
        weights: weight_ih (4D, I), weight_hh (4D, D) and two biases (4D), of float32.

    Returns:
        The outputs (B, T, D) and the final c (B, D), of float32.
    """
    num_rows, dim = x.size(0), weights[1].size(1)
    rows, features = -num_rows % ROWS, -x.size(2) % FEATURES
    h, c = (x.new_zeros(num_rows, dim),) * 2 if state is None else state
    weight_ih, *others = weights
    flat = torch.cat([weight.reshape(-1) for weight in (F.pad(weight_ih, (0, features)), *others)])
    x = F.pad(x, (0, features, 0, 0, 0, rows))
    h, c = F.pad(h, (0, 0, 0, rows)), F.pad(c, (0, 0, 0, rows))
    y, c = _ScaledHalf.apply(x, h, c, flat)  # type: ignore[no-untyped-call]
    return y[:num_rows], c[:num_rows]


def _kernel(x: Tensor, h: Tensor, c: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
    """torch's LSTM with all weights in one tensor, the layout cuDNN expects."""
    dim = h.size(1)
    shapes = [(4 * dim, x.size(2)), (4 * dim, dim), (4 * dim,), (4 * dim,)]
    chunks = torch.split(flat, [int(torch.Size(shape).numel()) for shape in shapes])
    weights = [chunk.view(shape) for chunk, shape in zip(chunks, shapes, strict=True)]
    # biases, 1 layer, no dropout, training (which keeps what the backward pass needs), one direction, batch first
    y, _, last = torch.lstm(x, [h[None], c[None]], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
    return y, last[0]


class _ScaledHalf(torch.autograd.Function):
    """`_kernel` in float16, with scaled gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, c: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
        inputs = [part.detach().half() for part in (x, h, c, flat)]
        if not any(ctx.needs_input_grad):
            y, last = _kernel(*inputs)
            return y.float(), last.float()
        ctx.inputs = [part.requires_grad_() for part in inputs]
        with torch.enable_grad():
            ctx.outputs = _kernel(*ctx.inputs)
        y, last = ctx.outputs
        return y.detach().float(), last.detach().float()

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_c: Tensor) -> tuple[Tensor, ...]:
        largest = torch.maximum(grad_y.abs().amax(), grad_c.abs().amax())
        scale = torch.exp2(torch.floor(torch.log2(LARGEST / largest)))
        scale = torch.where(torch.isfinite(scale), scale, 1.0)  # gradients of zero, or not finite
        gradients = torch.autograd.grad(
            ctx.outputs, ctx.inputs, [(grad_y * scale).half(), (grad_c * scale).half()], retain_graph=True
        )
        return tuple(gradient.float() / scale for gradient in gradients)
