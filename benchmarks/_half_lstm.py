"""An experiment: weft's LSTM in half precision, where cuDNN has persistent kernels for single layers.

Gradients underflow in float16. The backward pass of an LSTM is linear in its incoming gradients: they are multiplied by a power
of two that makes them large, and the results are divided by it. The factor stays on the GPU, so that the host does not wait.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft.nn.recurrent import LSTM

LARGEST = 2.0**6  # of scaled gradients; float16 ends at 2^16, and gradients grow through time


class _ScaledLSTM(torch.autograd.Function):
    """torch.lstm in another dtype, with scaled gradients: (x, h, c, weights) in float32 to y in float32."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        flat = torch.cat([weight.reshape(-1) for weight in weights]).to(dtype)
        views = torch.split(flat, [weight.numel() for weight in weights])
        parts = [view.view_as(weight) for view, weight in zip(views, weights, strict=True)]
        inputs = [part.detach().requires_grad_() for part in (x.to(dtype), h.to(dtype), c.to(dtype), *parts)]
        with torch.enable_grad():
            y, _, last = torch.lstm(inputs[0], inputs[1:3], inputs[3:], True, 1, 0.0, True, False, True)
        ctx.inputs, ctx.outputs = inputs, (y, last)
        return y.detach().float(), last.detach().float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        largest = torch.maximum(grad.abs().amax(), grad_last.abs().amax()).clamp(min=1e-30)
        scale = torch.exp2(torch.floor(torch.log2(LARGEST / largest)))
        outputs = [(part * scale).to(output.dtype) for part, output in zip((grad, grad_last), ctx.outputs, strict=True)]
        grads = torch.autograd.grad(ctx.outputs, ctx.inputs, outputs)
        return None, *(part.float() / scale for part in grads)


class HalfLSTM(nn.Module):
    """A layer of weft's LSTM that computes in `dtype`; for whole sequences without padding."""

    def __init__(self, layer: LSTM, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer, dtype

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        zeros = x.new_zeros(1, x.size(0), self.layer.dim, dtype=torch.float32)
        h, c = (zeros, zeros) if state is None else (part[None].float() for part in state)
        with torch.autocast(x.device.type, enabled=False):
            y, last = _ScaledLSTM.apply(self.dtype, x.float(), h, c, *self.layer.cell.all_weights[0])  # type: ignore[no-untyped-call]
        return y, (y[:, -1], last[0])


def use_half(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Replace every LSTM layer of a model; returns the model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LSTM) and not isinstance(parent, HalfLSTM):
                setattr(parent, name, HalfLSTM(child, dtype))
    return model
