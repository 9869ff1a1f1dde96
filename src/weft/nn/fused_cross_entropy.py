"""Output layer and cross-entropy in one function, for training with large vocabularies on a GPU that can hold the logits.

Equal to `F.cross_entropy(head.logits(x), labels)`, but the logits are overwritten by their gradients as soon as the loss is
known, in one kernel: they are read from memory once and written once, in the type of the matrix products.

    loss = log sum_v exp(logit_v) - sum_v q_v logit_v,   d loss / d logit_v = p_v - q_v

p is the softmax, and q the target distribution: 1 - e on the label plus e / V on every token, with label smoothing e.

Shapes: N positions, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.nn.chunked_cross_entropy import Options
from weft.nn.kernels import load_kernels

Gradients = tuple[Tensor, Tensor, Tensor | None]


def fused_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: Options) -> Tensor:
    """Cross-entropy of each label in nats, (N,); x (N, D), weight (V, D), bias (V,), labels (N,)."""
    if torch.compiler.is_compiling():
        # converted here, where the compiler joins it with what is around: for both passes at once, and, of tied embeddings,
        # with the sum of their two gradients
        x, weight, bias = _converted(x, weight, bias, options.dtype)
        result: tuple[Tensor, Tensor] = _loss_operator(x, weight, bias, labels, options.label_smoothing, options.logit_softcap)
        return result[0]
    loss: Tensor = _FusedCrossEntropy.apply(x, weight, bias, labels, options)  # type: ignore[no-untyped-call]
    return loss


def loss_and_gradient(logits: Tensor, labels: Tensor, label_smoothing: float, logit_softcap: float) -> Tensor:
    """The loss of each position, (N,), in float32. The logits (N, V) become the gradients of the losses."""
    numbers = logits.float()
    if logit_softcap:
        numbers = logit_softcap * torch.tanh(numbers / logit_softcap)
    loss = F.cross_entropy(numbers, labels, reduction="none", label_smoothing=label_smoothing)
    gradients = numbers.softmax(1).sub_(label_smoothing / logits.size(1))
    gradients.scatter_add_(1, labels[:, None], gradients.new_full((len(labels), 1), label_smoothing - 1))
    if logit_softcap:
        gradients.mul_(1 - (numbers / logit_softcap).square())
    logits.copy_(gradients)
    return loss


def kernels() -> ModuleType | None:
    """The Triton kernel of `loss_and_gradient`, if it can be used."""
    return load_kernels("triton_cross_entropy")


def _converted(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, logit_softcap: float
) -> tuple[Tensor, Tensor]:
    """The loss of each position, (N,), and its gradients with respect to the logits, (N, V)."""
    logits = F.linear(x, weight, bias)
    function = kernels().loss_and_gradient if logits.is_cuda else loss_and_gradient  # type: ignore[union-attr]
    return function(logits, labels, label_smoothing, logit_softcap), logits


def _backward(grad: Tensor, tensors: tuple[Tensor, Tensor, Tensor | None], grad_logits: Tensor) -> Gradients:
    """The gradients of x, weight and bias, from those of the losses, (N,): what is small is multiplied, not the logits."""
    x, weight, bias = tensors
    dtype = grad_logits.dtype
    grad_x = ((grad_logits @ weight.to(dtype)) * grad[:, None]).to(x.dtype)
    grad_weight = (grad_logits.t() @ (x * grad[:, None]).to(dtype)).to(weight.dtype)
    if bias is None or not bias.requires_grad:
        return grad_x, grad_weight, None
    return grad_x, grad_weight, (grad.to(dtype) @ grad_logits).to(bias.dtype)


class _FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: Options) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            parts = _converted(x, weight, bias, options.dtype)
            loss, grad_logits = _forward(*parts, labels, options.label_smoothing, options.logit_softcap)
        ctx.save_for_backward(x, weight, bias, grad_logits)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, grad_logits = ctx.saved_tensors
        return *_backward(grad, (x, weight, bias), grad_logits), None, None


# ---- the same as operators for torch.compile, which does not see into the kernel


@torch.library.custom_op("weft::fused_cross_entropy", mutates_args=())
def _loss_operator(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, logit_softcap: float
) -> tuple[Tensor, Tensor]:
    with torch.autocast(x.device.type, enabled=False):
        return _forward(x, weight, bias, labels, label_smoothing, logit_softcap)


@_loss_operator.register_fake
def _loss_shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, logit_softcap: float
) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x), dtype=torch.float32), x.new_empty(len(x), len(weight))


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, bias, grad_logits = ctx.saved_tensors
    with torch.autocast(x.device.type, enabled=False):
        return *_backward(grad, (x, weight, bias), grad_logits), None, None, None


_loss_operator.register_autograd(_differentiate, setup_context=_save_for_backward)
