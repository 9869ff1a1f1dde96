"""The output layer of language models.

Shapes: B batch size, T sequence length, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.linear_cross_entropy import can_fuse, linear_cross_entropy
from weft.nn.packed_linear import bind_linear

MAX_LOGITS = 1 << 25  # logits in memory at once when no gradients are computed: 128 MB
# in training on a GPU, logits in chunks of this many, if all of them, with what is computed from them, would take a large part
# of its memory. Otherwise the plain functions are faster: the compiler joins them with what is around them
MAX_TRAINING_LOGITS = 1 << 27
LOGIT_BYTES, MAX_MEMORY = 8, 1 / 8
MIN_FUSED_VOCABULARY = 2048  # for smaller ones, a compiler joins the plain functions as well


def is_large(num_positions: int, weight: Tensor) -> bool:
    """Whether the logits of all positions are too many to hold. (On a CPU, `linear_cross_entropy` is faster than chunks.)"""
    if not weight.is_cuda or num_positions * len(weight) <= MAX_TRAINING_LOGITS:
        return False
    memory: int = torch.cuda.get_device_properties(weight.device).total_memory
    return num_positions * len(weight) * LOGIT_BYTES > MAX_MEMORY * memory


def is_fused(hidden: Tensor, weight: Tensor) -> bool:
    """Whether a kernel computes the loss and the gradients of the logits at once: for half precision on a GPU."""
    if not weight.is_cuda or len(weight) < MIN_FUSED_VOCABULARY:
        return False
    from weft.nn.chunked_cross_entropy import product_dtype
    from weft.nn.fused_cross_entropy import kernels

    return product_dtype(hidden) in (torch.bfloat16, torch.float16) and kernels() is not None


class LMHead(nn.Module):
    """Linear layer to the vocabulary, with softmax and cross-entropy. Tied embeddings are passed as `weight`."""

    bias: Tensor

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        *,
        logit_softcap: float | None = None,
        weight: Tensor | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim).normal_(std=dim**-0.5)) if weight is None else weight
        if bias:
            self.bias = nn.Parameter(torch.zeros(vocab_size))
        else:  # a constant, which is not saved
            self.register_buffer("bias", torch.zeros(vocab_size), persistent=False)
        self.has_bias = bias
        self.logit_softcap = logit_softcap  # limits logits smoothly to +-logit_softcap (Gemma 2)
        self.compiled: Callable[[LMHead, Tensor, Tensor, float], Tensor] | None = None  # `cross_entropy`, for training

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) to logits (..., V)."""
        logits = F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype)).float()
        return logits if self.logit_softcap is None else self.logit_softcap * torch.tanh(logits / self.logit_softcap)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to log-probabilities (..., V)."""
        logits = self.logits(x)
        if torch.is_grad_enabled() or logits.device.type != "cpu":
            return logits.log_softmax(-1)
        # in place: on a CPU, allocating that much memory takes longer than the softmax
        return torch.log_softmax(logits, -1, out=logits)

    def lean(self) -> Callable[[Tensor], Tensor]:
        """`forward` with bound weights, for vectors (B, D) of their dtype and without gradients; see `weft.nn.decode_step`."""
        product, softcap = bind_linear(self.weight, self.bias), self.logit_softcap

        def log_probs(x: Tensor) -> Tensor:
            logits = product(x).float()
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            return torch.log_softmax(logits, -1, out=logits)

        return log_probs

    def loss(self, x: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of each target in nats, (B, T); x (B, T, D), targets (B, T).

        With label smoothing e, the target distribution is 1 - e on the target plus e / V on every token (Szegedy et al. 2016).
        """
        hidden, labels = x.flatten(0, 1), targets.flatten()
        if torch.is_grad_enabled() and self.logit_softcap is None and can_fuse(hidden, self.weight):
            return linear_cross_entropy(hidden, self.weight, self.bias, labels, label_smoothing).view_as(targets)
        if torch.is_grad_enabled() and is_large(len(hidden), self.weight):
            # imported here, because defining its operators takes time, and few models need them
            from weft.nn.chunked_cross_entropy import Options, chunked_cross_entropy, product_dtype

            options = Options(label_smoothing, self.logit_softcap or 0.0, product_dtype(hidden))
            return chunked_cross_entropy(hidden, self.weight, self.bias, labels, options).view_as(targets)
        if torch.is_grad_enabled() and is_fused(hidden, self.weight):
            from weft.nn.chunked_cross_entropy import Options, product_dtype
            from weft.nn.fused_cross_entropy import fused_cross_entropy

            options = Options(label_smoothing, self.logit_softcap or 0.0, product_dtype(hidden))
            bias = self.bias if self.has_bias else None
            return fused_cross_entropy(hidden, self.weight, bias, labels, options).view_as(targets)
        if torch.is_grad_enabled():
            cross_entropy = self.compiled or LMHead.cross_entropy
            return cross_entropy(self, hidden, labels, label_smoothing).view_as(targets)
        # in chunks: scoring reads more positions at once than training, and logits are large
        chunk_size = max(1, MAX_LOGITS // len(self.weight))
        chunks = zip(torch.split(hidden, chunk_size), torch.split(labels, chunk_size), strict=True)
        losses = [self.cross_entropy(chunk, chunk_labels, label_smoothing) for chunk, chunk_labels in chunks]
        return torch.cat(losses).view_as(targets)

    def cross_entropy(self, x: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        """`loss` of positions (N, D) with labels (N,), all at once: (N,)."""
        return F.cross_entropy(self.logits(x), labels, reduction="none", label_smoothing=label_smoothing)

    def compile_region(self, compiler: Callable[[Any], Any]) -> None:
        """Compile `cross_entropy` in training."""
        self.compiled = compiler(LMHead.cross_entropy)
