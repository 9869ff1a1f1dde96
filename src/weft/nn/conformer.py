"""The sublayers that make a Transformer layer a Conformer layer (Gulati et al. 2020): half-step feed-forward sublayers around
attention and a convolution.

Shapes: B batch size, T sequence length, D hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.linear import OneDNNLinear
from weft.nn.memory import Memory


class HalfStep(nn.Module):
    """Half of the output of a sublayer without state, for a residual connection of half a step."""

    def __init__(self, sublayer: nn.Module) -> None:
        super().__init__()
        self.sublayer = sublayer

    def forward(self, x: Tensor, state: tuple[()] = (), token_mask: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        y, _ = self.sublayer(x, (), token_mask)
        return 0.5 * y, ()

    def init_state(self, memory: Memory) -> tuple[()]:
        return ()


class ConvModule(nn.Module):
    """The convolution of a Conformer layer.

        y = W_2 silu(norm(depthwise(glu(W_1 x))))

    A layer norm replaces the batch norm of the paper, so that rows are independent. Causal, its state is the last
    `kernel_size` - 1 inputs of the depthwise convolution, (B, n - 1, D); otherwise it has no state, because it needs the whole
    sequence.
    """

    def __init__(self, dim: int, *, kernel_size: int, causal: bool) -> None:
        super().__init__()
        self.kernel_size, self.causal = kernel_size, causal
        self.up_proj = OneDNNLinear(dim, 2 * dim)
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, groups=dim)
        self.norm, self.to_out = nn.LayerNorm(dim), OneDNNLinear(dim, dim)

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if state is not None and not self.causal:
            raise ValueError("bidirectional layers need the whole sequence at once")
        x = F.glu(self.up_proj(x))
        if token_mask is not None:
            x = x.masked_fill(~token_mask[..., None], 0.0)
        before = self.kernel_size - 1 if self.causal else (self.kernel_size - 1) // 2
        history = x.new_zeros(x.size(0), before, x.size(2)) if state is None else state
        padded = F.pad(torch.cat([history, x], 1), (0, 0, 0, self.kernel_size - 1 - before))
        y = self.depthwise(padded.transpose(1, 2)).transpose(1, 2)
        return self.to_out(F.silu(self.norm(y))), self._last_inputs(padded, token_mask, x.size(1)) if self.causal else None

    def _last_inputs(self, padded: Tensor, token_mask: Tensor | None, length: int) -> Tensor:
        """The inputs before the end of each row, (B, n - 1, D)."""
        if token_mask is None:
            return padded[:, length:]
        index = token_mask.sum(1, keepdim=True) + torch.arange(self.kernel_size - 1, device=padded.device)
        return padded.gather(1, index[..., None].expand(-1, -1, padded.size(2)))
