"""Reshape weights for Hugging Face models without changing the function that they compute.

Shapes: D hidden size, H heads of size E, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.models.config import StackConfig


class StackTensors(NamedTuple):
    """The weights of a model by our names, and the values of config.json that follow from their shapes."""

    tensors: dict[str, Tensor]
    hidden_size: int
    num_heads: int
    norm_eps: float


def pad_heads(tensors: Mapping[str, Tensor], config: StackConfig, *, stack: str) -> tuple[dict[str, Tensor], int, int]:
    """Pad every layer of a `stack` to the same number of heads with heads of zeros, which do not change outputs. Heads have one
    size, which divides the hidden size. Returns the weights, the number of heads per layer, and the number of new heads."""
    counts, head_dims = zip(*map(config.heads_in_layer, range(config.num_layers)), strict=True)
    head_dim = max(head_dims)
    num_heads = config.hidden_size // head_dim
    padded = dict(tensors)
    for layer, count in enumerate(counts):
        mixer = f"{stack}.layers.{2 * layer}.mixer"
        if not count:  # pruned completely: only the output bias is left
            padded |= {f"{mixer}.to_out.bias": padded.pop(f"{mixer}.bias")}
            shapes = {"to_qkv.weight": (0, config.hidden_size), "to_qkv.bias": (0,), "to_out.weight": (config.hidden_size, 0)}
            padded |= {f"{mixer}.{name}": torch.zeros(shape) for name, shape in shapes.items()}
        num_new = config.hidden_size - count * head_dim  # new rows of each of query, key and value
        weight, bias, out_weight = (padded[f"{mixer}.{name}"] for name in ("to_qkv.weight", "to_qkv.bias", "to_out.weight"))
        padded[f"{mixer}.to_qkv.weight"] = F.pad(weight.view(3, -1, config.hidden_size), (0, 0, 0, num_new)).flatten(0, 1)
        padded[f"{mixer}.to_qkv.bias"] = F.pad(bias.view(3, -1), (0, num_new)).flatten()
        padded[f"{mixer}.to_out.weight"] = F.pad(out_weight, (0, num_new))
    return padded, num_heads, num_heads * config.num_layers - sum(counts)


def fold_output_bias(model: StackTensors, num_layers: int) -> StackTensors:
    """An equivalent language model without an output bias: the hidden size grows by one unit per head, and the final norm sets
    the first new unit to 1, so that its output weights are the bias.

    Layer norm subtracts the mean of each row, so everything that is added to the residual stream can be centered to mean 0. New
    units of zeros then only scale the variance by D / (D + H), which the weights and the eps of the norms compensate.
    """
    old = {name: tensor.double() for name, tensor in model.tensors.items()}
    hidden_size, num_heads = model.hidden_size, model.num_heads
    head_dim, new_hidden_size = hidden_size // num_heads, hidden_size + num_heads
    variance_ratio = hidden_size / new_hidden_size
    new = dict[str, Tensor]()

    def centered_and_padded(name: str, dim: int) -> Tensor:
        centered = old[name] - old[name].mean(dim, keepdim=True)
        return F.pad(centered, (0, num_heads) if dim == -1 else (0, 0, 0, num_heads))

    def in_heads(tensor: Tensor, dim: int) -> Tensor:
        """Append a zero to each head."""
        last = tensor.movedim(dim, -1)
        return F.pad(last.reshape(*last.shape[:-1], -1, head_dim), (0, 1)).flatten(-2).movedim(-1, dim)

    norms = [f"stack.layers.{index}.norm" for index in range(2 * num_layers)] + ["stack.final_norm"]
    for name in norms:
        new[f"{name}.weight"] = F.pad(old[f"{name}.weight"] * math.sqrt(variance_ratio), (0, num_heads))
        new[f"{name}.bias"] = F.pad(old[f"{name}.bias"], (0, num_heads))
    new["stack.final_norm.bias"][hidden_size] = 1.0
    for name in ("embedding.weight", "stack.positions.table.weight"):
        new[name] = centered_and_padded(name, -1)
    for layer in range(num_layers):
        attention, ffn = (f"stack.layers.{2 * layer + part}.mixer" for part in (0, 1))
        weight, bias = old[f"{attention}.to_qkv.weight"].clone(), old[f"{attention}.to_qkv.bias"].clone()
        for queries in (weight[:hidden_size], bias[:hidden_size]):
            queries *= math.sqrt((head_dim + 1) / head_dim)  # attention divides by the square root of the larger head size
        new[f"{attention}.to_qkv.weight"] = F.pad(in_heads(weight, 0), (0, num_heads))
        new[f"{attention}.to_qkv.bias"] = in_heads(bias, 0)
        new[f"{attention}.to_out.weight"] = in_heads(centered_and_padded(f"{attention}.to_out.weight", 0), 1)
        new[f"{ffn}.up_proj.weight"] = F.pad(old[f"{ffn}.up_proj.weight"], (0, num_heads))
        new[f"{ffn}.up_proj.bias"] = old[f"{ffn}.up_proj.bias"]
        new[f"{ffn}.to_out.weight"] = centered_and_padded(f"{ffn}.to_out.weight", 0)
        new |= {f"{part}.to_out.bias": centered_and_padded(f"{part}.to_out.bias", -1) for part in (attention, ffn)}
    new["head.weight"] = F.pad(torch.cat([old["head.weight"], old["head.bias"][:, None]], dim=1), (0, num_heads - 1))
    return StackTensors(
        {name: tensor.float() for name, tensor in new.items()}, new_hidden_size, num_heads, model.norm_eps * variance_ratio
    )
