"""Attention heads: a list of them, the network with masked heads, and its weights without some heads.

Shapes: B rows, H heads, T queries, E head dimension, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.errors import UsageError
from weft.explain.hooks import patch_activations
from weft.explain.inputs import network, stacks
from weft.runs.run import AnyRun


class LayerHeads(NamedTuple):
    """The heads of one attention layer."""

    component: str  # encoder, decoder or cross
    layer: int  # from 1
    name: str  # of the mixer module
    num_heads: int  # 0 if all are pruned
    head_dim: int


class Head(NamedTuple):
    """One head, both indices from 0."""

    layer: int  # in the list of all attention layers
    head: int


def attention_layers(run: AnyRun) -> list[LayerHeads]:
    """All attention layers of a run, bottom to top in each component."""
    model = network(run)
    stacks_of_run = [] if model is None else stacks(run)
    sublayers = [(stack, offset, component) for stack in stacks_of_run for offset, component in enumerate(stack.attention)]
    if model is None or not sublayers:
        raise UsageError("heads", f"{run.config.arch} has no attention heads ({run.directory.path})")
    layers = []
    for stack, offset, component in sublayers:
        # a layer of the run file is a block of sublayers in the model: self-attention, cross-attention, feed-forward
        block_size = len(list(model.get_submodule(f"{stack.name}.layers").children())) // stack.config.num_layers
        for layer in range(stack.config.num_layers):
            name = f"{stack.name}.layers.{layer * block_size + offset}.mixer"
            mixer: Any = model.get_submodule(name)
            layers.append(LayerHeads(component, layer + 1, name, mixer.num_heads, stack.config.heads_in_layer(layer)[1]))
    if not all_heads(layers):
        raise UsageError("heads", f"all attention heads of {run.directory.path} are already pruned")
    return layers


def head_name(layers: Sequence[LayerHeads], head: Head) -> str:
    """`cross 2.1` for the first head of the second cross-attention layer."""
    layer = layers[head.layer]
    return f"{layer.component} {layer.layer}.{head.head + 1}"


def all_heads(layers: Sequence[LayerHeads]) -> list[Head]:
    return [Head(i, head) for i, layer in enumerate(layers) for head in range(layer.num_heads)]


@contextmanager
def masked_heads(model: nn.Module, layers: Sequence[LayerHeads], removed: Collection[Head]) -> Iterator[None]:
    """Within the block, the output of these heads is 0."""

    def mask(masked: list[int]) -> Callable[[Tensor], Tensor]:
        def patch(output: Tensor) -> Tensor:  # (B, H, T, E)
            gates = output.new_ones(output.size(1), 1, 1)
            gates[masked] = 0.0
            return output * gates

        return patch

    by_layer = {layer: [head.head for head in removed if head.layer == layer] for layer in {head.layer for head in removed}}
    with patch_activations(model, {f"{layers[layer].name}.attend": mask(heads) for layer, heads in by_layer.items()}):
        yield


# ---- weights and config of a pruned model


def remaining_heads(layers: Sequence[LayerHeads], removed: Collection[Head]) -> list[list[int]]:
    """The indices of the heads of each layer that are not removed."""
    return [[head for head in range(layer.num_heads) if Head(i, head) not in removed] for i, layer in enumerate(layers)]


PROJECTIONS = {"to_qkv": 3, "to_q": 1, "to_kv": 2}  # number of stacked projections


def _select_heads(tensor: Tensor, name: str, layer: LayerHeads, remaining: Sequence[int]) -> Tensor:
    """The part of a weight or bias that belongs to the remaining heads; `name` is relative to the mixer."""
    projection, kind = name.split(".")
    indices, width = torch.tensor(remaining), tensor.size(-1)
    if projection in PROJECTIONS:
        # each head has consecutive rows, (E, D) of a weight or (E,) of a bias
        rows = tensor.reshape(PROJECTIONS[projection], layer.num_heads, -1)
        return rows.index_select(1, indices).reshape(-1, *([width] if kind == "weight" else []))
    if kind == "weight":  # of the output projection, (D, H E)
        return tensor.reshape(len(tensor), layer.num_heads, layer.head_dim).index_select(1, indices).flatten(1)
    return tensor


def remove_heads(
    tensors: Mapping[str, Tensor], layers: Sequence[LayerHeads], remaining: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """The weights of a model with only the remaining heads. A layer without heads keeps the bias of its output projection."""
    pruned = dict(tensors)
    for layer, heads in zip(layers, remaining, strict=True):
        if len(heads) == layer.num_heads:
            continue
        names = [name for name in tensors if name.startswith(f"{layer.name}.") and ".positions." not in name]
        for name in names:
            weight = pruned.pop(name)
            if heads:
                pruned[name] = _select_heads(weight, name.removeprefix(f"{layer.name}."), layer, heads)
        if not heads:
            for name in [name for name in tensors if name.startswith(f"{layer.name}.positions.")]:
                del pruned[name]
            bias = tensors.get(f"{layer.name}.to_out.bias")
            pruned[f"{layer.name}.bias"] = torch.zeros(len(tensors[f"{layer.name}.to_out.weight"])) if bias is None else bias
    return pruned


def _scalar_if_equal(values: Sequence[int]) -> int | list[int]:
    """One number if all values are equal, else a list."""
    return values[0] if len(set(values)) == 1 else list(values)


def _alibi_slopes(model: nn.Module, layer: LayerHeads, remaining: Sequence[int]) -> list[float]:
    if not remaining:
        return []
    positions: Any = model.get_submodule(f"{layer.name}.positions")
    slopes: list[float] = positions.slope[list(remaining)].tolist()
    return slopes


def pruned_config(run: AnyRun, layers: Sequence[LayerHeads], remaining: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The resolved configuration of a run with only the remaining heads."""
    values: dict[str, Any] = run.config.to_dict()
    model = network(run)
    for component in dict.fromkeys(layer.component for layer in layers):
        selected = [
            (layer, list(heads)) for layer, heads in zip(layers, remaining, strict=True) if layer.component == component
        ]
        table = values["model"]
        for key in next(stack.keys for stack in stacks(run) if component in stack.attention):
            table = table[key]
        num_heads = [len(heads) for _, heads in selected]
        is_pruned = num_heads != [layer.num_heads for layer, _ in selected]
        if is_pruned and component != "cross" and table["position_encoding"] == "relative-bias":
            raise UsageError("heads", "cannot be removed with position_encoding 'relative-bias', which all layers share")
        if component == "cross":
            table["num_cross_heads"] = num_heads
            continue
        table |= {"num_heads": num_heads, "head_dim": _scalar_if_equal([layer.head_dim for layer, _ in selected])}
        if table["position_encoding"] == "alibi" and model is not None:  # the remaining heads keep their slopes
            table["alibi_slopes"] = [_alibi_slopes(model, layer, heads) for layer, heads in selected]
    return values
