"""The output layer of language models.

Shapes: B batch size, T sequence length, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.linear_cross_entropy import can_fuse, linear_cross_entropy

MAX_LOGITS = 1 << 25  # logits in memory at once when no gradients are computed: 128 MB


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
        self.logit_softcap = logit_softcap  # limits logits smoothly to +-logit_softcap (Gemma 2)

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
        weight, bias, softcap = self.weight.t(), self.bias, self.logit_softcap

        def log_probs(x: Tensor) -> Tensor:
            logits = torch.addmm(bias, x, weight).float()
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
        if torch.is_grad_enabled():
            loss = F.cross_entropy(self.logits(hidden), labels, reduction="none", label_smoothing=label_smoothing)
            return loss.view_as(targets)
        # in chunks: scoring reads more positions at once than training, and logits are large
        chunk_size = max(1, MAX_LOGITS // len(self.weight))
        chunks = zip(torch.split(hidden, chunk_size), torch.split(labels, chunk_size), strict=True)
        losses = [
            F.cross_entropy(self.logits(chunk), chunk_labels, reduction="none", label_smoothing=label_smoothing)
            for chunk, chunk_labels in chunks
        ]
        return torch.cat(losses).view_as(targets)
