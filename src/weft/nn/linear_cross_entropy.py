"""Output layer and cross-entropy in one function, for training on a CPU.

Equal to `F.cross_entropy(F.linear(x, weight, bias), labels)`, but it holds one array of logits instead of four: allocating
them and passing through them takes a tenth of the training step of a small Transformer.

Shapes: N positions, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = 1 << 22  # logits processed at once; below that, matrix products of the chunks are slower


def can_fuse(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear_cross_entropy` applies, and is faster than the two functions that it replaces: it is for many logits."""
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return is_plain and len(x) * len(weight) >= CHUNK_LOGITS and not torch.compiler.is_compiling()


def linear_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy of each label in nats, (N,); x (N, D), weight (V, D), bias (V,), labels (N,)."""
    loss: Tensor = _LinearCrossEntropy.apply(x, weight, bias, labels, label_smoothing)  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        logits = torch.addmm(bias, x, weight.t())
        vocab_size = len(weight)
        loss = logits.gather(1, labels[:, None])[:, 0].mul_(label_smoothing - 1)
        total = torch.empty_like(loss)
        chunk_size = max(1, CHUNK_LOGITS // vocab_size)
        for low in range(0, len(x), chunk_size):
            rows = slice(low, low + chunk_size)
            chunk = logits[rows]
            if label_smoothing:
                loss[rows] -= chunk.mean(1).mul_(label_smoothing)
            largest = chunk.amax(1)
            chunk.sub_(largest[:, None]).exp_()  # in place: from here on, `logits` are unnormalized probabilities
            total[rows] = chunk.sum(1)
            loss[rows] += total[rows].log().add_(largest)
        ctx.save_for_backward(x, weight, labels, logits, total)
        ctx.label_smoothing = label_smoothing
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of a logit is its probability minus that of the target distribution."""
        x, weight, labels, unnormalized, total = ctx.saved_tensors
        label_smoothing, vocab_size = ctx.label_smoothing, len(weight)
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_x = torch.empty_like(x) if need_x else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        grad_bias = weight.new_zeros(vocab_size) if need_bias else None
        chunk_size = max(1, CHUNK_LOGITS // vocab_size)
        buffer = torch.empty_like(unnormalized[:chunk_size])
        for low in range(0, len(x), chunk_size):
            rows = slice(low, low + chunk_size)
            row_grad = grad[rows, None]
            chunk = torch.mul(unnormalized[rows], row_grad / total[rows, None], out=buffer[: len(row_grad)])
            if label_smoothing:
                chunk.sub_(row_grad * (label_smoothing / vocab_size))
            chunk.scatter_add_(1, labels[rows, None], row_grad * (label_smoothing - 1))
            if grad_x is not None:
                torch.mm(chunk, weight, out=grad_x[rows])
            if grad_weight is not None:
                grad_weight.addmm_(chunk.t(), x[rows])
            if grad_bias is not None:
                grad_bias += chunk.sum(0)
        return grad_x, grad_weight, grad_bias, None, None
