"""Output layer and cross-entropy in one function, for training on a CPU.

Equal to `F.cross_entropy(F.linear(x, weight, bias), labels)`, but it holds one array of logits instead of four: allocating
them and passing through them takes a tenth of the training step of a small Transformer. The forward pass turns the logits into
their gradients, a few rows at a time, while they are in the cache; the backward pass has only matrix products.

Shapes: N positions, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.nn.linear import product, weight_gradient

MIN_LOGITS = 1 << 19  # with fewer, the two functions that it replaces are as fast
CHUNK_LOGITS = 1 << 20  # logits that fit the cache


def can_fuse(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear_cross_entropy` applies, and is faster than the two functions that it replaces: it is for many logits, and
    a vocabulary that is larger than the hidden size."""
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    has_many = len(x) * len(weight) >= MIN_LOGITS and len(weight) >= x.size(1)
    return is_plain and has_many and not torch.compiler.is_compiling()


def linear_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy of each label in nats, (N,); x (N, D), weight (V, D), bias (V,), labels (N,)."""
    loss: Tensor = _LinearCrossEntropy.apply(x, weight, bias, labels, label_smoothing)  # type: ignore[no-untyped-call]
    return loss


def _losses_and_gradients(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """The loss of each row of logits, which become the gradients of the losses: probabilities minus those of the targets."""
    loss = logits.gather(1, labels[:, None])[:, 0].mul_(label_smoothing - 1)
    if label_smoothing:
        loss -= logits.mean(1).mul_(label_smoothing)
    largest = logits.amax(1)
    probs = torch.softmax(logits, 1, out=logits)
    loss += largest.sub_(probs.amax(1).log_())  # the logarithm of the sum of exponentials
    if label_smoothing:
        probs.sub_(label_smoothing / probs.size(1))
    probs.scatter_add_(1, labels[:, None], probs.new_full((len(probs), 1), label_smoothing - 1))
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        logits = product(x, weight, bias)
        loss = x.new_empty(len(x))
        chunk_size = max(1, CHUNK_LOGITS // len(weight))
        for low in range(0, len(x), chunk_size):
            rows = slice(low, low + chunk_size)
            loss[rows] = _losses_and_gradients(logits[rows], labels[rows], label_smoothing)
        ctx.save_for_backward(x, weight, logits)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gradients = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        # the gradients of the losses scale the small factor of each product
        grad_x = product(gradients, weight.t()).mul_(grad[:, None]) if need_x else None
        grad_weight = weight_gradient(gradients, x * grad[:, None]) if need_weight else None
        grad_bias = torch.mv(gradients.t(), grad) if need_bias else None
        return grad_x, grad_weight, grad_bias, None, None
