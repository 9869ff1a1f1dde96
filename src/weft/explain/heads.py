"""Attention heads: a list of them, the network with masked heads, and its weights with heads removed.

Shapes: B rows, H heads, T queries, E size of a head, D width.
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
    """One layer of attention."""

    part: str  # encoder, decoder, or cross: from the output to its source
    layer: int  # from 1
    name: str  # of the mixer, as the model has it
    heads: int  # 0 where all were cut out
    size: int


class Head(NamedTuple):
    """One head, both numbers from 0."""

    layer: int  # among the layers of all parts
    head: int


def heads_of(run: AnyRun) -> list[LayerHeads]:
    """Every layer of attention of a run, from the bottom up; one without heads is refused with the reason."""
    model = network(run)
    own = [] if model is None else [(stack, at, part) for stack in stacks(run) for at, part in enumerate(stack.attention)]
    if model is None or not own:
        raise UsageError("heads", f"{run.config.arch} has no attention heads ({run.directory.path})")
    found = []
    for stack, place, part in own:
        block = len(list(model.get_submodule(f"{stack.name}.layers").children())) // stack.config.num_layers
        for layer in range(stack.config.num_layers):
            name = f"{stack.name}.layers.{layer * block + place}.mixer"
            mixer: Any = model.get_submodule(name)
            found.append(LayerHeads(part, layer + 1, name, mixer.num_heads, stack.config.heads_in_layer(layer)[1]))
    if not all_heads(found):
        raise UsageError("heads", f"all attention heads of {run.directory.path} are already pruned")
    return found


def named(layers: Sequence[LayerHeads], head: Head) -> str:
    """A head for people: `cross 2.1` is the first of the second layer's."""
    own = layers[head.layer]
    return f"{own.part} {own.layer}.{head.head + 1}"


def all_heads(layers: Sequence[LayerHeads]) -> list[Head]:
    return [Head(at, head) for at, one in enumerate(layers) for head in range(one.heads)]


@contextmanager
def masked_heads(model: nn.Module, layers: Sequence[LayerHeads], removed: Collection[Head]) -> Iterator[None]:
    """While the block runs, these heads find nothing."""

    def silenced(lost: list[int]) -> Callable[[Tensor], Tensor]:
        def change(found: Tensor) -> Tensor:  # (B, H, T, E)
            fraction = found.new_ones(found.size(1), 1, 1)
            fraction[lost] = 0.0
            return found * fraction

        return change

    lost = {at: [one.head for one in removed if one.layer == at] for at in {one.layer for one in removed}}
    with patch_activations(model, {f"{layers[at].name}.attend": silenced(own) for at, own in lost.items()}):
        yield


# ---- cutting them out


def remaining_heads(layers: Sequence[LayerHeads], removed: Collection[Head]) -> list[list[int]]:
    """Of each layer the numbers of the heads that stay."""
    return [[head for head in range(one.heads) if Head(at, head) not in removed] for at, one in enumerate(layers)]


PROJECTIONS = {"to_qkv": 3, "to_q": 1, "to_kv": 2}  # how many are stacked in each


def _cut(tensor: Tensor, name: str, own: LayerHeads, stay: Sequence[int]) -> Tensor:
    """Of one tensor of a layer what belongs to the heads that stay."""
    projection, which = name.split(".")
    at, width = torch.tensor(stay), tensor.size(-1)
    if projection in PROJECTIONS:
        parts = tensor.reshape(PROJECTIONS[projection], own.heads, -1)  # a head's rows, (E, D) or (E,), one after another
        return parts.index_select(1, at).reshape(-1, *([width] if which == "weight" else []))
    if which == "weight":  # of the outlet, (D, H E)
        return tensor.reshape(len(tensor), own.heads, own.size).index_select(1, at).flatten(1)
    return tensor


def remove_heads(
    tensors: Mapping[str, Tensor], layers: Sequence[LayerHeads], stay: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """The weights of a model of which only some heads of each layer stay; a layer that loses all keeps its outlet's bias."""
    found = dict(tensors)
    for own, heads in zip(layers, stay, strict=True):
        if len(heads) == own.heads:
            continue
        names = [name for name in tensors if name.startswith(f"{own.name}.") and ".positions." not in name]
        for name in names:
            weight = found.pop(name)
            if heads:
                found[name] = _cut(weight, name.removeprefix(f"{own.name}."), own, heads)
        if not heads:
            for name in [name for name in tensors if name.startswith(f"{own.name}.positions.")]:
                del found[name]
            found[f"{own.name}.bias"] = tensors[f"{own.name}.to_out.bias"]
    return found


def _one(values: Sequence[int]) -> int | list[int]:
    """One number where all are that."""
    return values[0] if len(set(values)) == 1 else list(values)


def pruned_config(run: AnyRun, layers: Sequence[LayerHeads], stay: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What resolved.toml says of a run of which only some heads of each layer stay."""
    values: dict[str, Any] = run.config.to_dict()
    model = network(run)
    for part in dict.fromkeys(one.part for one in layers):
        mine = [(own, list(heads)) for own, heads in zip(layers, stay, strict=True) if own.part == part]
        table = values["model"]
        for key in next(stack.keys for stack in stacks(run) if part in stack.attention):
            table = table[key]
        counts = [len(heads) for _, heads in mine]
        if part == "cross":
            table["num_cross_heads"] = counts
            continue
        table |= {"num_heads": counts, "head_dim": _one([own.size for own, _ in mine])}
        if table["position_encoding"] == "alibi" and model is not None:  # each keeps its own
            table["alibi_slopes"] = [_slopes(model, own, heads) for own, heads in mine]
    return values


def _slopes(model: nn.Module, own: LayerHeads, stay: Sequence[int]) -> list[float]:
    if not stay:
        return []
    positions: Any = model.get_submodule(f"{own.name}.positions")
    found: list[float] = positions.slope[list(stay)].tolist()
    return found
