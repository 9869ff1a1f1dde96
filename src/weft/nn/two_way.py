"""Two-way layers: a window with its position in the middle, and two mixers that read from one end each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.recurrent import NONLINEARITIES
from weft.nn.state import each, leaves


def flipped(x: Tensor, keep: Tensor | None) -> Tensor:
    """Each row's real positions in reverse order, padding left where it is; (B, T, D)."""
    if keep is None:
        return x.flip(1)
    at = torch.arange(x.size(1), device=x.device)
    index = torch.where(keep, keep.sum(1, keepdim=True) - 1 - at, at)
    return x.gather(1, index[..., None].expand_as(x))


class Centred(nn.Module):
    """y(t) = f(W [x(t-k); ...; x(t+k)] + b), n = 2k + 1 positions: a window with its position in the middle, the
    convolution of Collobert et al. (2011) and Kim (2014). An even n sees one more after than before. Around the text are
    zeros; there is no state, for nothing is read piece by piece."""

    def __init__(self, dim: int, *, context: int, inlet: int | None = None, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.reach, self.nonlinearity = context, NONLINEARITIES[nonlinearity]
        # not named as a one-way window's, which has the same shape and means other positions
        self.around = nn.Linear(context * (inlet or dim), dim)

    def forward(self, x: Tensor, state: None = None, keep: Tensor | None = None) -> tuple[Tensor, None]:
        if state is not None:
            raise ValueError("two-way layers read a whole sequence at once")
        real = x if keep is None else x.masked_fill(~keep[..., None], 0.0)
        before = (self.reach - 1) // 2
        seen = F.pad(real, (0, 0, before, self.reach - 1 - before))
        windows = seen.unfold(1, self.reach, 1).transpose(2, 3).flatten(2)  # (B, T, reach * I), first to last
        return self.nonlinearity(self.around(windows)), None


class Both(nn.Module):
    """Two mixers of half the width, one from each end, side by side. Its state looks like that of one mixer, one way."""

    def __init__(self, ahead: nn.Module, back: nn.Module) -> None:
        super().__init__()
        self.ahead, self.back = ahead, back

    def forward(self, x: Tensor, state: None = None, keep: Tensor | None = None) -> tuple[Tensor, Any]:
        if state is not None:
            raise ValueError("two-way layers read a whole sequence at once")
        y, last = self.ahead(x, None, keep)
        z, first = self.back(flipped(x, keep), None, keep)
        others = iter(leaves(first))
        return torch.cat([y, flipped(z, keep)], dim=-1), each(lambda a: torch.cat([a, next(others)], dim=-1), last)
