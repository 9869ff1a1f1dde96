"""Weights in the shapes that Hugging Face's models have, where ours are of others; what is computed stays exactly the same.

Shapes: D width, H heads of size E there, V words.
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
    """The weights of a model by our names, and the numbers of its config.json that follow from their shapes."""

    tensors: dict[str, Tensor]
    width: int
    heads: int
    eps: float  # of its norms


def with_all_heads(tensors: Mapping[str, Tensor], table: StackConfig, *, stack: str) -> tuple[dict[str, Tensor], int, int]:
    """The weights of a `stack` whose heads fill its width in every layer, how many these are, and how many of them, over all
    layers, are new. New ones are zeros: what they find is nothing, and so nothing is added."""
    sizes = {size for _, size in map(table.heads_in_layer, range(table.num_layers))}
    counts = [table.heads_in_layer(layer)[0] for layer in range(table.num_layers)]
    heads, rest = divmod(table.hidden_size, max(sizes))
    if len(sizes) > 1 or rest or max(counts) > heads:
        raise UsageError(
            "export",
            f"model.num_heads = {table.num_heads!r} with model.head_dim = {table.head_dim!r}: there all heads are of one size, and together no wider than model.hidden_size = {table.hidden_size}",
        )
    found = dict(tensors)
    for layer, count in enumerate(counts):
        mixer = f"{stack}.layers.{2 * layer}.mixer"
        if not count:  # all that is left of it is the bias of its outlet
            found |= {f"{mixer}.to_out.bias": found.pop(f"{mixer}.bias")}
            shapes = {"to_qkv.weight": (0, table.hidden_size), "to_qkv.bias": (0,), "to_out.weight": (table.hidden_size, 0)}
            found |= {f"{mixer}.{name}": torch.zeros(shape) for name, shape in shapes.items()}
        new = table.hidden_size - count * max(sizes)
        weight, bias, output_dir = (found[f"{mixer}.{name}"] for name in ("to_qkv.weight", "to_qkv.bias", "to_out.weight"))
        found[f"{mixer}.to_qkv.weight"] = F.pad(weight.view(3, -1, table.hidden_size), (0, 0, 0, new)).flatten(0, 1)
        found[f"{mixer}.to_qkv.bias"] = F.pad(bias.view(3, -1), (0, new)).flatten()
        found[f"{mixer}.to_out.weight"] = F.pad(output_dir, (0, new))
    return found, heads, heads * table.num_layers - sum(counts)


def fold_output_bias(model: StackTensors, layers: int) -> StackTensors:
    """The same language model without a bias of its output: each head is one wider, and one of the new columns that the output
    reads is always 1, with the bias as its weight.

    Layer norms see a column less its row's mean. So whatever writes to the residual stream may as well write rows of mean 0;
    columns of zeros beside them then only scale the variance, by D / (D + H), for which weights and eps of norms make up.
    """
    heads, old = model.heads, {name: tensor.double() for name, tensor in model.tensors.items()}
    wide, size = model.width + heads, model.width // heads
    fraction = model.width / wide
    new = dict[str, Tensor]()

    def written(name: str, dim: int) -> Tensor:
        centred = old[name] - old[name].mean(dim, keepdim=True)
        return F.pad(centred, (0, heads) if dim == -1 else (0, 0, 0, heads))

    def in_heads(tensor: Tensor, dim: int) -> Tensor:
        """Each head one wider, by a zero."""
        last = tensor.movedim(dim, -1)
        return F.pad(last.reshape(*last.shape[:-1], -1, size), (0, 1)).flatten(-2).movedim(-1, dim)

    norms = [f"stack.layers.{at}.norm" for at in range(2 * layers)] + ["stack.final_norm"]
    for name in norms:
        new[f"{name}.weight"] = F.pad(old[f"{name}.weight"] * math.sqrt(fraction), (0, heads))
        new[f"{name}.bias"] = F.pad(old[f"{name}.bias"], (0, heads))
    new["stack.final_norm.bias"][model.width] = 1.0
    for name in ("embedding.weight", "stack.positions.table.weight"):
        new[name] = written(name, -1)
    for layer in range(layers):
        attends, feeds = (f"stack.layers.{2 * layer + part}.mixer" for part in (0, 1))
        weight, bias = old[f"{attends}.to_qkv.weight"].clone(), old[f"{attends}.to_qkv.bias"].clone()
        for queries in (weight[: model.width], bias[: model.width]):
            queries *= math.sqrt((size + 1) / size)  # the scores of wider heads are divided by more
        new[f"{attends}.to_qkv.weight"] = F.pad(in_heads(weight, 0), (0, heads))
        new[f"{attends}.to_qkv.bias"] = in_heads(bias, 0)
        new[f"{attends}.to_out.weight"] = in_heads(written(f"{attends}.to_out.weight", 0), 1)
        new[f"{feeds}.up_proj.weight"] = F.pad(old[f"{feeds}.up_proj.weight"], (0, heads))
        new[f"{feeds}.up_proj.bias"] = old[f"{feeds}.up_proj.bias"]
        new[f"{feeds}.to_out.weight"] = written(f"{feeds}.to_out.weight", 0)
        new |= {f"{part}.to_out.bias": written(f"{part}.to_out.bias", -1) for part in (attends, feeds)}
    new["head.weight"] = F.pad(torch.cat([old["head.weight"], old["head.bias"][:, None]], dim=1), (0, heads - 1))
    return StackTensors({name: tensor.float() for name, tensor in new.items()}, wide, heads, model.eps * fraction)
