"""From tables to parts: the one place where the names of the run file become modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from weft.models.tables import StackTable
from weft.nn.attention import FeedForward, Headless
from weft.nn.connections import Connection, Dense, Highway, Plain, PostNorm, Residual
from weft.nn.pooling import POOLS, Ends
from weft.nn.positions import Alibi, Learned, NoPositions, Relative, Rotary, Sinusoidal
from weft.nn.stack import Layer, Stack
from weft.nn.two_way import Both


def norm(kind: str, dim: int, *, eps: float | None = None) -> nn.Module:
    match kind:
        case "layer":
            return nn.LayerNorm(dim, 1e-5 if eps is None else eps)
        case "rms":
            return nn.RMSNorm(dim, eps)
    return nn.Identity()


def connection(table: StackTable, depth: int) -> Connection:
    match table.connection:
        case "residual":
            return Residual()
        case "post-norm":
            return PostNorm(norm(table.norm, table.width, eps=table.norm_eps))
        case "highway":
            return Highway(table.width)
        case "dense":
            return Dense(table.width, depth=depth)
    return Plain()


def added_positions(kind: str, dim: int, *, longest: int) -> NoPositions:
    """What is added to the embeddings at the bottom of a stack."""
    match kind:
        case "sinusoidal":
            return Sinusoidal(dim)
        case "learned":
            return Learned(dim, longest=longest)
    return NoPositions()


def inside_positions(kind: str, *, heads: int, head_size: int, slopes: Sequence[float] | None = None) -> NoPositions:
    """What attention itself knows of positions."""
    match kind:
        case "relative":
            return Relative(head_size)
        case "alibi":
            return Alibi(heads, slopes=slopes)
        case "rotary":
            return Rotary(head_size)
    return NoPositions()


HEADED = ("heads", "head_size", "qk_norm", "slopes", "attention_dropout")  # options that are built, not handed on as they are


def attention(table: StackTable, layer: int, window: int | None) -> nn.Module:
    """A mixer that attends, of one layer."""
    heads, size = table.heads_of(layer)
    if not heads:
        return Headless(table.width)
    slopes = None if table.slopes is None else table.slopes[layer]
    built = {
        "heads": heads,
        "head_size": size,
        "positions": inside_positions(table.positions, heads=heads, head_size=size, slopes=slopes),
        "inner_norm": nn.RMSNorm(size, elementwise_affine=False) if table.qk_norm else None,
        "dropout": table.attention_dropout or 0.0,
    }
    own = {option: value for option, value in table.mixer_options().items() if option not in HEADED}
    around = table.traits.around if table.two_way else None
    if around is not None:  # a table refuses two_way where there is no such form
        return around(table.width, **built, **own)
    return table.traits.make(table.width, window=window, **built, **own)


def mixer(table: StackTable, layer: int, window: int | None, *, inlet: int) -> nn.Module:
    """The mixer of one layer; `inlet` is the width of what it reads, where it does not attend."""
    traits, own = table.traits, table.mixer_options()
    if traits.attends:
        return attention(table, layer, window)
    if not table.two_way:
        return traits.make(table.width, inlet=inlet, **own)
    if (around := traits.around) is not None:
        return around(table.width, inlet=inlet, **own)
    ahead, back = (traits.make(table.width // 2, inlet=inlet, **own) for _ in range(2))
    return Both(ahead, back)


def layered(
    table: StackTable, mixers: Sequence[nn.Module], positions: NoPositions, *, inlet: int, drop_top: bool = True
) -> Stack:
    """The mixers one above the other, each with the table's norm, connection and dropout; the last without it, if so."""
    # with post-norm the norm stands after the sum, and the last one is the outlet's
    before = "none" if table.connection == "post-norm" else table.norm
    drops = [table.dropout] * (len(mixers) - 1) + [table.dropout if drop_top else 0.0]
    narrow = int(inlet != table.width)  # nothing of another width is added, gated or kept: the bottom layer is plain
    layers = []
    for depth, (part, drop) in enumerate(zip(mixers, drops, strict=True)):
        bottom = depth < narrow
        joined = Plain() if bottom else connection(table, depth - narrow)
        ahead = norm(before, inlet if bottom else table.width, eps=table.norm_eps)
        layers.append(Layer(part, joined, norm=ahead, dropout=drop, number=depth * table.layers // len(mixers)))
    outlet = norm(before, table.width, eps=table.norm_eps)
    if table.connection == "dense":  # what arrives at the top is everything, side by side
        outlet = nn.Sequential(nn.Linear((len(layers) + 1 - narrow) * table.width, table.width), outlet)
    return Stack(layers, positions=positions, outlet=outlet)


def feed_forward(table: StackTable) -> list[nn.Module]:
    """What stands after each mixer: one part, or none."""
    if not isinstance(table.feed_forward, int):
        return []
    return [FeedForward(table.width, hidden=table.feed_forward, activation=table.activation or "gelu")]


def stack(table: StackTable, *, window: int, inlet: int | None = None) -> Stack:
    """The stack of a filled table; `window` is how many positions it is trained to see, `inlet` the width of what it reads."""
    read, mixers = inlet or table.width, list[nn.Module]()
    for layer in range(table.layers):
        mixers += [mixer(table, layer, window, inlet=table.width if layer else read), *feed_forward(table)]
    return layered(table, mixers, added_positions(table.positions, read, longest=window), inlet=read)


def pool(kind: str, table: StackTable) -> nn.Module:
    """What makes one vector of all that the stack of a table says."""
    if kind == "last" and table.two_way and table.traits.two_way is None:
        return Ends()  # each direction ends at its own end
    return POOLS[kind](table.width)


def matrices(stack: Stack, at: str) -> set[str]:
    """The weights inside a stack that map vectors to vectors, what Muon is for; `at` is its name in the model."""
    owners = dict(stack.layers.named_modules())
    names = [name for name, weight in stack.layers.named_parameters() if weight.dim() == 2]
    return {f"{at}.layers.{name}" for name in names if not isinstance(owners[name.rpartition(".")[0]], nn.Embedding)}


def scale_mixers(stack: Stack) -> None:
    """Small normal weights in attention and feed-forward layers (as GPT-2); what joins layers keeps its own start."""
    for name, part in stack.layers.named_modules():
        if isinstance(part, nn.Linear) and ".mixer." in name:
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)


def quiet_outlets(model: nn.Module, factor: float) -> None:
    """What writes to the residual stream starts small, or at zero: a deep stack starts near the identity."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("to_out.weight"):
                weight.mul_(factor)
