"""From tables to parts: the one place where the names of the run file become modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from weft.models.config import StackConfig
from weft.nn.attention import FeedForward, PrunedAttention
from weft.nn.bidirectional import Bidirectional
from weft.nn.pooling import POOLINGS, BidirectionalLastPooling
from weft.nn.positions import (
    AlibiBias,
    LearnedPositions,
    PositionEncoding,
    RelativePositions,
    RotaryEmbedding,
    SinusoidalPositions,
)
from weft.nn.skip_connections import Connection, Dense, Highway, NoSkip, PostNormResidual, Residual
from weft.nn.stack import Layer, Stack


def norm(kind: str, dim: int, *, eps: float | None = None) -> nn.Module:
    match kind:
        case "layernorm":
            return nn.LayerNorm(dim, 1e-5 if eps is None else eps)
        case "rmsnorm":
            return nn.RMSNorm(dim, eps)
    return nn.Identity()


def connection(config: StackConfig, depth: int) -> Connection:
    match config.skip_connection:
        case "residual":
            return Residual()
        case "post-norm":
            return PostNormResidual(norm(config.norm, config.hidden_size, eps=config.norm_eps))
        case "highway":
            return Highway(config.hidden_size)
        case "dense":
            return Dense(config.hidden_size, depth=depth)
    return NoSkip()


def input_position_encoding(kind: str, dim: int, *, max_positions: int) -> PositionEncoding:
    """What is added to the embeddings at the bottom of a stack."""
    match kind:
        case "sinusoidal":
            return SinusoidalPositions(dim)
        case "learned":
            return LearnedPositions(dim, max_positions=max_positions)
    return PositionEncoding()


def attention_position_encoding(
    kind: str, *, heads: int, head_size: int, slopes: Sequence[float] | None = None
) -> PositionEncoding:
    """What attention itself knows of positions."""
    match kind:
        case "relative":
            return RelativePositions(head_size)
        case "alibi":
            return AlibiBias(heads, slopes=slopes)
        case "rotary":
            return RotaryEmbedding(head_size)
    return PositionEncoding()


HEADED = (
    "num_heads",
    "head_dim",
    "qk_norm",
    "alibi_slopes",
    "attention_dropout",
)  # options that are built, not handed on as they are


def attention(config: StackConfig, layer: int, context_length: int | None) -> nn.Module:
    """A mixer that attends, of one layer."""
    heads, size = config.heads_in_layer(layer)
    if not heads:
        return PrunedAttention(config.hidden_size)
    slopes = None if config.alibi_slopes is None else config.alibi_slopes[layer]
    built = {
        "num_heads": heads,
        "head_dim": size,
        "positions": attention_position_encoding(config.position_encoding, heads=heads, head_size=size, slopes=slopes),
        "qk_norm": nn.RMSNorm(size, elementwise_affine=False) if config.qk_norm else None,
        "dropout": config.attention_dropout or 0.0,
    }
    own = {option: value for option, value in config.mixer_options().items() if option not in HEADED}
    around = config.traits.around if config.bidirectional else None
    if around is not None:  # a table refuses two_way where there is no such form
        return around(config.hidden_size, **built, **own)
    return config.traits.make(config.hidden_size, context_length=context_length, **built, **own)


def mixer(config: StackConfig, layer: int, context_length: int | None, *, input_size: int) -> nn.Module:
    """The mixer of one layer; `inlet` is the width of what it reads, where it does not attend."""
    traits, own = config.traits, config.mixer_options()
    if traits.attends:
        return attention(config, layer, context_length)
    if not config.bidirectional:
        return traits.make(config.hidden_size, input_size=input_size, **own)
    if (around := traits.around) is not None:
        return around(config.hidden_size, input_size=input_size, **own)
    ahead, back = (traits.make(config.hidden_size // 2, input_size=input_size, **own) for _ in range(2))
    return Bidirectional(ahead, back)


def build_stack(
    config: StackConfig, mixers: Sequence[nn.Module], positions: PositionEncoding, *, input_proj: int, drop_top: bool = True
) -> Stack:
    """The mixers one above the other, each with the table's norm, connection and dropout; the last without it, if so."""
    # with post-norm the norm stands after the sum, and the last one is the outlet's
    before = "none" if config.skip_connection == "post-norm" else config.norm
    drops = [config.dropout] * (len(mixers) - 1) + [config.dropout if drop_top else 0.0]
    narrow = int(
        input_proj != config.hidden_size
    )  # nothing of another width is added, gated or kept: the bottom layer is plain
    layers = []
    for depth, (part, drop) in enumerate(zip(mixers, drops, strict=True)):
        bottom = depth < narrow
        joined = NoSkip() if bottom else connection(config, depth - narrow)
        ahead = norm(before, input_proj if bottom else config.hidden_size, eps=config.norm_eps)
        layers.append(Layer(part, joined, norm=ahead, dropout=drop, number=depth * config.num_layers // len(mixers)))
    outlet = norm(before, config.hidden_size, eps=config.norm_eps)
    if config.skip_connection == "dense":  # what arrives at the top is everything, side by side
        outlet = nn.Sequential(nn.Linear((len(layers) + 1 - narrow) * config.hidden_size, config.hidden_size), outlet)
    return Stack(layers, positions=positions, final_norm=outlet)


def feed_forward(config: StackConfig) -> list[nn.Module]:
    """What stands after each mixer: one part, or none."""
    if not isinstance(config.ffn_dim, int):
        return []
    return [FeedForward(config.hidden_size, ffn_dim=config.ffn_dim, activation=config.activation or "gelu")]


def stack(config: StackConfig, *, context_length: int, input_size: int | None = None) -> Stack:
    """The stack of a filled table; `window` is how many positions it is trained to see, `inlet` the width of what it reads."""
    read, mixers = input_size or config.hidden_size, list[nn.Module]()
    for layer in range(config.num_layers):
        mixers += [
            mixer(config, layer, context_length, input_size=config.hidden_size if layer else read),
            *feed_forward(config),
        ]
    return build_stack(
        config, mixers, input_position_encoding(config.position_encoding, read, max_positions=context_length), input_proj=read
    )


def build_pooling(kind: str, config: StackConfig) -> nn.Module:
    """What makes one vector of all that the stack of a table says."""
    if kind == "last" and config.bidirectional and config.traits.bidirectional is None:
        return BidirectionalLastPooling()  # each direction ends at its own end
    return POOLINGS[kind](config.hidden_size)


def muon_parameters(stack: Stack, at: str) -> set[str]:
    """The weights inside a stack that map vectors to vectors, what Muon is for; `at` is its name in the model."""
    owners = dict(stack.layers.named_modules())
    names = [name for name, weight in stack.layers.named_parameters() if weight.dim() == 2]
    return {f"{at}.layers.{name}" for name in names if not isinstance(owners[name.rpartition(".")[0]], nn.Embedding)}


def init_gpt2(stack: Stack) -> None:
    """Small normal weights in attention and feed-forward layers (as GPT-2); what joins layers keeps its own start."""
    for name, part in stack.layers.named_modules():
        if isinstance(part, nn.Linear) and ".mixer." in name:
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)


def scale_residual_projections(model: nn.Module, factor: float) -> None:
    """What writes to the residual stream starts small, or at zero: a deep stack starts near the identity."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("to_out.weight"):
                weight.mul_(factor)
