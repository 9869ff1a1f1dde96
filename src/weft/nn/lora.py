"""Low-rank adaptation (LoRA; Hu et al. 2022): trained matrices of low rank are added to weights that do not change.

    y = W x + b + 2 B A x,  with A (r, inputs) random and B (outputs, r) zero at first

The factor 2 is alpha / r with alpha = 2 r, a usual choice. A model with adapters has the weight names of the model without, and
two more for each matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.linear import is_linear

SCALE = 2.0
A, B = "lora_a", "lora_b"


class LoRALinear(nn.Linear):
    """A linear layer with frozen weights and a trained adapter of rank r."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        # the weights are replaced below: without a device, nothing is allocated
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        device = linear.weight.device
        self.lora_a = nn.Parameter(torch.empty(rank, linear.in_features, device=device).normal_(std=linear.in_features**-0.5))
        self.lora_b = nn.Parameter(torch.zeros(linear.out_features, rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + SCALE * F.linear(F.linear(x, self.lora_a), self.lora_b)


def add_adapters(model: nn.Module, part: nn.Module, rank: int) -> int:
    """Freeze all weights of a model and add adapters to the linear layers of a part of it. Returns their number."""
    model.requires_grad_(False)
    owners = [(owner, name, module) for owner in part.modules() for name, module in owner.named_children()]
    linear = [(owner, name, module) for owner, name, module in owners if is_linear(module)]
    for owner, name, module in linear:
        setattr(owner, name, LoRALinear(module, rank))
    return len(linear)


def adapter_names(names: Iterable[str]) -> list[str]:
    """The names of the weights of adapters."""
    return [name for name in names if name.endswith((f".{A}", f".{B}"))]


def merge_adapters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model without adapters that computes the same function: W + 2 B A."""
    adapters = set(adapter_names(tensors))
    merged = {name: tensor for name, tensor in tensors.items() if name not in adapters}
    for name in adapters:
        if name.endswith(f".{B}"):
            layer = name.removesuffix(f".{B}")
            weight = tensors[f"{layer}.weight"]
            change = SCALE * (tensors[name].double() @ tensors[f"{layer}.{A}"].double())
            merged[f"{layer}.weight"] = (weight.double() + change).to(weight.dtype)
    return merged
