"""Dropout, its variants for recurrent language models, and the penalties on their activations (Merity et al. 2018, "AWD-LSTM").

Shapes: B batch size, T sequence length, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MIN_ELEMENTS = 1 << 15  # with fewer, the function of torch is as fast
LEVELS = 1 << 16  # values of a random 16-bit integer


class _IntegerMask(torch.autograd.Function):
    """Sets an element to zero if its random 16-bit integer is among the lowest `num_dropped` of LEVELS, then adds `skip`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, skip: Tensor | None, num_dropped: int) -> Tensor:
        # the generator takes most of the time, so four integers are made from each of its numbers
        numbers = x.new_empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        integers = numbers.view(torch.int16)[: x.numel()].view(x.shape)  # from -LEVELS / 2
        factor = LEVELS / (LEVELS - num_dropped)
        # written as float32: conversion from bool is slow
        mask = torch.ge(integers, num_dropped - LEVELS // 2, out=x.new_empty(x.shape)).mul_(factor)
        ctx.save_for_backward(mask)
        return x * mask if skip is None else torch.addcmul(skip, x, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (mask,) = ctx.saved_tensors
        return grad * mask, grad if ctx.needs_input_grad[1] else None, None


class IntegerDropout(nn.Dropout):
    """`nn.Dropout`; on a CPU it draws large masks from random integers, with a probability rounded to 1 / 65,536."""

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        """x after dropout, plus `skip`: the sum of a skip connection, in the same pass over memory."""
        num_dropped = round(self.p * LEVELS)
        is_large = self.training and x.device.type == "cpu" and x.numel() >= MIN_ELEMENTS
        is_plain = is_large and x.dtype == torch.float32 and not torch.compiler.is_compiling()
        has_same_kind = skip is None or (skip.dtype, skip.shape) == (x.dtype, x.shape)
        if not (is_plain and has_same_kind) or not 0 < num_dropped < LEVELS:
            y = F.dropout(x, self.p, self.training)
            return y if skip is None else skip + y
        output: Tensor = _IntegerMask.apply(x, skip, num_dropped)  # type: ignore[no-untyped-call]
        return output


class VariationalDropout(nn.Module):
    """Dropout with one mask for all positions of a row (Gal and Ghahramani 2016)."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.prob == 0.0:
            return x
        return x * F.dropout(torch.ones_like(x[:, :1]), self.prob)


class WordTypeDropout(nn.Module):
    """Set the embeddings of random words to zero wherever they occur in the batch (Gal and Ghahramani 2016)."""

    def __init__(self, vocab_size: int, prob: float) -> None:
        super().__init__()
        self.vocab_size, self.prob = vocab_size, prob

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """The embeddings x (B, T, D) of the tokens (B, T)."""
        if not self.training or self.prob == 0.0:
            return x
        mask = F.dropout(x.new_ones(self.vocab_size), self.prob)
        return x * mask[tokens][..., None]


class ActivationPenalty(nn.Module):
    """Activation regularization and temporal activation regularization (Merity et al. 2017) at each position, (B, T).

        activation / D * |m * h_t|^2 + temporal / D * |h_t - h_{t-1}|^2

    h is the output of the top layer, m * h the same after dropout. The first position of a row has no temporal term.
    """

    def __init__(self, *, activation: float = 0.0, temporal: float = 0.0) -> None:
        super().__init__()
        self.activation, self.temporal = activation, temporal

    def forward(self, h: Tensor, dropped: Tensor) -> Tensor:
        penalty = self.activation * dropped.float().square().mean(-1)
        if self.temporal:
            change = h.float().diff(dim=1).square().mean(-1)
            penalty = penalty + self.temporal * F.pad(change, (1, 0))
        return penalty
