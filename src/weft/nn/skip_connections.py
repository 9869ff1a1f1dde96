"""Skip connections around a layer: `mixer_input(x)` is the input of the mixer, `forward(x, y)` the output of the layer.
`skips` is False if that is y alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def norm_input(x: Tensor, norm: nn.Module) -> Tensor:
    """x in the precision of the norm that reads it. Under autocast, torch sees to that for LayerNorm, but not for RMSNorm."""
    return x.to(norm.weight.dtype) if isinstance(norm, nn.RMSNorm) else x


class NoSkip(nn.Module):
    """y: no skip connection."""

    skips = False

    def mixer_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y


class Residual(nn.Module):
    """x + y (He et al. 2016)."""

    skips = True

    def mixer_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class PostNormResidual(nn.Module):
    """norm(x + y), as in the original Transformer (Vaswani et al. 2017)."""

    skips = True

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def mixer_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        output: Tensor = self.norm(norm_input(x + y, self.norm))
        return output


class Highway(nn.Module):
    """g * y + (1 - g) * x with g = sigmoid(W x + b) (Srivastava et al. 2015)."""

    skips = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, dim)
        nn.init.constant_(self.gate.bias, -1.0)  # mostly carry at first: a deep stack starts near the identity

    def mixer_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid().to(x.dtype)
        return torch.lerp(x, y.to(x.dtype), gate)


class Dense(nn.Module):
    """[x; y] (Huang et al. 2017): x is the concatenation of all layers below, projected to dim for the mixer."""

    skips = True

    def __init__(self, dim: int, *, depth: int) -> None:
        super().__init__()
        self.projection = nn.Linear((depth + 1) * dim, dim)

    def mixer_input(self, x: Tensor) -> Tensor:
        projected: Tensor = self.projection(x)
        return projected

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], dim=-1)


Connection = NoSkip | Residual | PostNormResidual | Highway | Dense
