"""Bidirectional mixers: a centered convolution, and two causal mixers that read in opposite directions.

Shapes: B batch size, T sequence length, D hidden size, I input size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.recurrent import NONLINEARITIES
from weft.nn.state import tree_leaves, tree_map


def reverse_sequences(x: Tensor, token_mask: Tensor | None) -> Tensor:
    """Reverse the tokens of each row (B, T, D); padding stays at the end."""
    if token_mask is None:
        return x.flip(1)
    positions = torch.arange(x.size(1), device=x.device)
    index = torch.where(token_mask, token_mask.sum(1, keepdim=True) - 1 - positions, positions)
    return x.gather(1, index[..., None].expand_as(x))


class CenteredConv(nn.Module):
    """Convolution with its position in the middle (Collobert et al. 2011, Kim 2014).

        y_t = f(W [x_{t-k}; ...; x_{t+k}] + b),  kernel size n = 2k + 1

    An even n covers one more position after t than before it. The text is padded with zeros on both sides. It has no state,
    because the layer needs the whole sequence.
    """

    def __init__(self, dim: int, *, kernel_size: int, input_size: int | None = None, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.kernel_size, self.nonlinearity = kernel_size, NONLINEARITIES[nonlinearity]
        # not called `hidden` as in CausalConv: the shapes are equal, but the columns belong to other positions
        self.conv = nn.Linear(kernel_size * (input_size or dim), dim)

    def forward(self, x: Tensor, state: None = None, token_mask: Tensor | None = None) -> tuple[Tensor, None]:
        if state is not None:
            raise ValueError("bidirectional layers need the whole sequence at once")
        tokens = x if token_mask is None else x.masked_fill(~token_mask[..., None], 0.0)
        before = (self.kernel_size - 1) // 2
        padded = F.pad(tokens, (0, 0, before, self.kernel_size - 1 - before))
        windows = padded.unfold(1, self.kernel_size, 1).transpose(2, 3).flatten(2)  # (B, T, n * I), first to last
        return self.nonlinearity(self.conv(windows)), None


class Bidirectional(nn.Module):
    """Two mixers of half the hidden size that read in opposite directions (Schuster and Paliwal 1997).

        y_t = [forward_t; backward_t]

    Its final state has the form of a single mixer's state of the full hidden size.
    """

    def __init__(self, forward_mixer: nn.Module, backward_mixer: nn.Module) -> None:
        super().__init__()
        self.forward_mixer, self.backward_mixer = forward_mixer, backward_mixer

    def forward(self, x: Tensor, state: None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        if state is not None:
            raise ValueError("bidirectional layers need the whole sequence at once")
        y_forward, forward_state = self.forward_mixer(x, None, token_mask)
        y_backward, backward_state = self.backward_mixer(reverse_sequences(x, token_mask), None, token_mask)
        backward_leaves = iter(tree_leaves(backward_state))
        return torch.cat([y_forward, reverse_sequences(y_backward, token_mask)], dim=-1), tree_map(
            lambda leaf: torch.cat([leaf, next(backward_leaves)], dim=-1), forward_state
        )
