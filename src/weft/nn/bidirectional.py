"""Two-way layers: a window with its position in the middle, and two mixers that read from one end each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.recurrent import NONLINEARITIES
from weft.nn.state import tree_leaves, tree_map


def reverse_sequences(x: Tensor, token_mask: Tensor | None) -> Tensor:
    """Each row's real positions in reverse order, padding left where it is; (B, T, D)."""
    if token_mask is None:
        return x.flip(1)
    positions = torch.arange(x.size(1), device=x.device)
    index = torch.where(token_mask, token_mask.sum(1, keepdim=True) - 1 - positions, positions)
    return x.gather(1, index[..., None].expand_as(x))


class CenteredConv(nn.Module):
    """y(t) = f(W [x(t-k); ...; x(t+k)] + b), n = 2k + 1 positions: a window with its position in the middle, the
    convolution of Collobert et al. (2011) and Kim (2014). An even n sees one more after than before. Around the text are
    zeros; there is no state, for nothing is read piece by piece."""

    def __init__(self, dim: int, *, kernel_size: int, input_size: int | None = None, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.kernel_size, self.nonlinearity = kernel_size, NONLINEARITIES[nonlinearity]
        # not named as a one-way window's, which has the same shape and means other positions
        self.conv = nn.Linear(kernel_size * (input_size or dim), dim)

    def forward(self, x: Tensor, state: None = None, token_mask: Tensor | None = None) -> tuple[Tensor, None]:
        if state is not None:
            raise ValueError("two-way layers read a whole sequence at once")
        real = x if token_mask is None else x.masked_fill(~token_mask[..., None], 0.0)
        before = (self.kernel_size - 1) // 2
        seen = F.pad(real, (0, 0, before, self.kernel_size - 1 - before))
        windows = seen.unfold(1, self.kernel_size, 1).transpose(2, 3).flatten(2)  # (B, T, reach * I), first to last
        return self.nonlinearity(self.conv(windows)), None


class Bidirectional(nn.Module):
    """Two mixers of half the width, one from each end, side by side. Its state looks like that of one mixer, one way."""

    def __init__(self, forward_mixer: nn.Module, backward_mixer: nn.Module) -> None:
        super().__init__()
        self.forward_mixer, self.backward_mixer = forward_mixer, backward_mixer

    def forward(self, x: Tensor, state: None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        if state is not None:
            raise ValueError("two-way layers read a whole sequence at once")
        y, last = self.forward_mixer(x, None, token_mask)
        z, first = self.backward_mixer(reverse_sequences(x, token_mask), None, token_mask)
        others = iter(tree_leaves(first))
        return torch.cat([y, reverse_sequences(z, token_mask)], dim=-1), tree_map(
            lambda a: torch.cat([a, next(others)], dim=-1), last
        )
