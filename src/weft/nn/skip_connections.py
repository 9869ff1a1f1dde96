"""What joins a layer's input and output. `enter(x)` is what the mixer sees, `forward(x, y)` what the layer gives on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NoSkip(nn.Module):
    """The output alone."""

    def mixer_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y


class Residual(nn.Module):
    """x + y (He et al. 2016)."""

    def mixer_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class PostNormResidual(nn.Module):
    """norm(x + y): where the first Transformer put its norms."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def mixer_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        joined: Tensor = self.norm(x + y)
        return joined


class Highway(nn.Module):
    """g * y + (1 - g) * x, the gate read off x (Srivastava et al. 2015)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, dim)
        nn.init.constant_(self.gate.bias, -1.0)  # at first mostly carry: deep stacks start as the identity

    def mixer_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid().to(x.dtype)
        return torch.lerp(x, y.to(x.dtype), gate)


class Dense(nn.Module):
    """x carries everything below, side by side; each mixer sees it projected to dim (Huang et al. 2017)."""

    def __init__(self, dim: int, *, depth: int) -> None:
        super().__init__()
        self.projection = nn.Linear((depth + 1) * dim, dim)

    def mixer_input(self, x: Tensor) -> Tensor:
        narrowed: Tensor = self.projection(x)
        return narrowed

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], dim=-1)


Connection = NoSkip | Residual | PostNormResidual | Highway | Dense
