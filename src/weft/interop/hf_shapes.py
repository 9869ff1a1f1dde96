"""Reshape weights for Hugging Face models without changing what is computed.

Shapes: D hidden size, H heads of size E, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import UsageError
from weft.models.config import StackConfig


class StackTensors(NamedTuple):
    """The weights of a model by our names, and the values of config.json that follow from their shapes."""

    tensors: dict[str, Tensor]
    width: int
    heads: int
    eps: float  # of its norms


def with_all_heads(tensors: Mapping[str, Tensor], table: StackConfig, *, stack: str) -> tuple[dict[str, Tensor], int, int]:
    """Fill every layer of a `stack` up to the same number of heads. Returns the weights, the number of heads per layer, and the
    total number of new heads. New heads are zeros, and therefore add nothing."""
    sizes = {size for _, size in map(table.heads_in_layer, range(table.num_layers))}
    counts = [table.heads_in_layer(layer)[0] for layer in range(table.num_layers)]
    heads, rest = divmod(table.hidden_size, max(sizes))
    if len(sizes) > 1 or rest or max(counts) > heads:
        raise UsageError(
            "export",
            f"Hugging Face has no equivalent of model.num_heads = {table.num_heads!r} "
            f"with model.head_dim = {table.head_dim!r}: "
            f"heads must have one size and fit into model.hidden_size = {table.hidden_size}",
        )
    padded = dict(tensors)
    for layer, count in enumerate(counts):
        mixer = f"{stack}.layers.{2 * layer}.mixer"
        if not count:  # pruned completely: only the output bias is left
            padded |= {f"{mixer}.to_out.bias": padded.pop(f"{mixer}.bias")}
            shapes = {"to_qkv.weight": (0, table.hidden_size), "to_qkv.bias": (0,), "to_out.weight": (table.hidden_size, 0)}
            padded |= {f"{mixer}.{name}": torch.zeros(shape) for name, shape in shapes.items()}
        new = table.hidden_size - count * max(sizes)
        weight, bias, out_weight = (padded[f"{mixer}.{name}"] for name in ("to_qkv.weight", "to_qkv.bias", "to_out.weight"))
        padded[f"{mixer}.to_qkv.weight"] = F.pad(weight.view(3, -1, table.hidden_size), (0, 0, 0, new)).flatten(0, 1)
        padded[f"{mixer}.to_qkv.bias"] = F.pad(bias.view(3, -1), (0, new)).flatten()
        padded[f"{mixer}.to_out.weight"] = F.pad(out_weight, (0, new))
    return padded, heads, heads * table.num_layers - sum(counts)


def fold_output_bias(model: StackTensors, layers: int) -> StackTensors:
    """The same language model without an output bias: each head is one unit wider, and one of the new units that the output
    reads is always 1, with the bias as its weight.

    Layer norm subtracts the mean of each row, so everything that is added to the residual stream can be centered to mean 0. New
    units of zeros then only scale the variance by D / (D + H), which the weights and the eps of the norms compensate.
    """
    heads, old = model.heads, {name: tensor.double() for name, tensor in model.tensors.items()}
    wide, size = model.width + heads, model.width // heads
    fraction = model.width / wide
    new = dict[str, Tensor]()

    def centered_and_padded(name: str, dim: int) -> Tensor:
        centered = old[name] - old[name].mean(dim, keepdim=True)
        return F.pad(centered, (0, heads) if dim == -1 else (0, 0, 0, heads))

    def in_heads(tensor: Tensor, dim: int) -> Tensor:
        """Append a zero to each head."""
        last = tensor.movedim(dim, -1)
        return F.pad(last.reshape(*last.shape[:-1], -1, size), (0, 1)).flatten(-2).movedim(-1, dim)

    norms = [f"stack.layers.{index}.norm" for index in range(2 * layers)] + ["stack.final_norm"]
    for name in norms:
        new[f"{name}.weight"] = F.pad(old[f"{name}.weight"] * math.sqrt(fraction), (0, heads))
        new[f"{name}.bias"] = F.pad(old[f"{name}.bias"], (0, heads))
    new["stack.final_norm.bias"][model.width] = 1.0
    for name in ("embedding.weight", "stack.positions.table.weight"):
        new[name] = centered_and_padded(name, -1)
    for layer in range(layers):
        attention, ffn = (f"stack.layers.{2 * layer + part}.mixer" for part in (0, 1))
        weight, bias = old[f"{attention}.to_qkv.weight"].clone(), old[f"{attention}.to_qkv.bias"].clone()
        for queries in (weight[: model.width], bias[: model.width]):
            queries *= math.sqrt((size + 1) / size)  # attention divides by the square root of the larger head size
        new[f"{attention}.to_qkv.weight"] = F.pad(in_heads(weight, 0), (0, heads))
        new[f"{attention}.to_qkv.bias"] = in_heads(bias, 0)
        new[f"{attention}.to_out.weight"] = in_heads(centered_and_padded(f"{attention}.to_out.weight", 0), 1)
        new[f"{ffn}.up_proj.weight"] = F.pad(old[f"{ffn}.up_proj.weight"], (0, heads))
        new[f"{ffn}.up_proj.bias"] = old[f"{ffn}.up_proj.bias"]
        new[f"{ffn}.to_out.weight"] = centered_and_padded(f"{ffn}.to_out.weight", 0)
        new |= {f"{part}.to_out.bias": centered_and_padded(f"{part}.to_out.bias", -1) for part in (attention, ffn)}
    new["head.weight"] = F.pad(torch.cat([old["head.weight"], old["head.bias"][:, None]], dim=1), (0, heads - 1))
    return StackTensors({name: tensor.float() for name, tensor in new.items()}, wide, heads, model.eps * fraction)
