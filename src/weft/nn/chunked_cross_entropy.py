"""Output layer and cross-entropy in one function, for training with large vocabularies on a GPU.

Equal to `F.cross_entropy(head.logits(x), labels)`, but it never holds the logits of all positions: the forward pass keeps one
number per position, and the backward pass computes the logits again, chunk by chunk. That is one more matrix product of three;
in exchange, the largest arrays of the training step are not written, nor read four times.

Shapes: N positions, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = 1 << 26  # logits computed at once: 256 MB in float32


class Options(NamedTuple):
    """What the loss depends on besides the output layer; a soft cap of 0 is none."""

    label_smoothing: float = 0.0
    logit_softcap: float = 0.0
    dtype: torch.dtype = torch.float32  # of matrix products


def product_dtype(x: Tensor) -> torch.dtype:
    """The type of matrix products with x: that of autocast, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def chunked_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, options: Options) -> Tensor:
    """Cross-entropy of each label in nats, (N,); x (N, D), weight (V, D), bias (V,), labels (N,)."""
    if torch.compiler.is_compiling():
        result: tuple[Tensor, Tensor] = _loss_operator(x, weight, bias, labels, *options)
        return result[0]
    loss: Tensor = _ChunkedCrossEntropy.apply(x, weight, bias, labels, options)  # type: ignore[no-untyped-call]
    return loss


def _chunks(num_positions: int, vocab_size: int) -> Iterator[slice]:
    size = max(1, CHUNK_LOGITS // vocab_size)
    return (slice(low, low + size) for low in range(0, num_positions, size))


def _forward(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The loss and the logarithm of the sum of exp(logit) of each position, (N,)."""
    smoothing, cap, dtype = options
    weight, bias = weight.to(dtype), bias.to(dtype)
    loss, log_total = (torch.empty(len(x), device=x.device) for _ in range(2))
    for rows in _chunks(len(x), len(weight)):
        logits = F.linear(x[rows].to(dtype), weight, bias).float()
        if cap:
            logits = logits.div_(cap).tanh_().mul_(cap)
        log_total[rows] = logits.logsumexp(1)
        loss[rows] = log_total[rows] - (1 - smoothing) * logits.gather(1, labels[rows, None])[:, 0]
        if smoothing:
            loss[rows] -= smoothing * logits.mean(1)
    return loss, log_total


def _backward(grad: Tensor, tensors: tuple[Tensor, ...], log_total: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias. That of a logit is its probability minus that of the target distribution."""
    x, full_weight, bias, labels = tensors
    smoothing, cap, dtype = options
    weight, vocab_size = full_weight.to(dtype), len(full_weight)
    grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
    grad_bias = torch.zeros_like(bias, dtype=torch.float32)
    for rows in _chunks(len(x), vocab_size):
        inputs, row_grad = x[rows].to(dtype), grad[rows, None].float()
        logits = F.linear(inputs, weight, bias.to(dtype)).float()
        capped = logits.div_(cap).tanh_() if cap else logits
        probs = (capped * cap if cap else capped).sub_(log_total[rows, None]).exp_().mul_(row_grad)
        if smoothing:
            probs.sub_(row_grad * (smoothing / vocab_size))
        probs.scatter_add_(1, labels[rows, None], row_grad * (smoothing - 1))
        if cap:  # the derivative of the cap
            probs.sub_(capped.square_().mul_(probs))
        grad_bias += probs.sum(0)
        grad_logits = probs.to(dtype)
        grad_x[rows] = (grad_logits @ weight).to(x.dtype)
        grad_weight += grad_logits.t() @ inputs
    return grad_x, grad_weight.to(full_weight.dtype), grad_bias.to(bias.dtype)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, options: Options) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            loss, log_total = _forward(x, weight, bias, labels, options)
        ctx.save_for_backward(x, weight, bias, labels, log_total)
        ctx.options = options
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, log_total = ctx.saved_tensors
        return *_backward(grad, tuple(tensors), log_total, ctx.options), None, None


# ---- the same as operators for torch.compile, which would unroll the chunks


@torch.library.custom_op("weft::chunked_cross_entropy", mutates_args=())
def _loss_operator(
    x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float, logit_softcap: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _forward(x, weight, bias, labels, Options(label_smoothing, logit_softcap, dtype))


@_loss_operator.register_fake
def _loss_shapes(
    x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float, logit_softcap: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x), dtype=torch.float32), x.new_empty(len(x), dtype=torch.float32)


@torch.library.custom_op("weft::chunked_cross_entropy_backward", mutates_args=())
def _backward_operator(
    grad: Tensor, tensors: list[Tensor], log_total: Tensor, label_smoothing: float, logit_softcap: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(grad, tuple(tensors), log_total, Options(label_smoothing, logit_softcap, dtype))


@_backward_operator.register_fake
def _backward_shapes(
    grad: Tensor, tensors: list[Tensor], log_total: Tensor, label_smoothing: float, logit_softcap: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, bias, _ = tensors
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, labels, *options = inputs
    ctx.save_for_backward(x, weight, bias, labels, output[1])
    ctx.options = options


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, log_total = ctx.saved_tensors
    return *_backward_operator(grad, tensors, log_total, *ctx.options), None, None, None, None


_loss_operator.register_autograd(_differentiate, setup_context=_save_for_backward)
