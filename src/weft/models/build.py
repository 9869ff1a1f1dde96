"""Build modules from a configuration: the only place where names in the run file become modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from weft.models.config import StackConfig
from weft.nn.attention import FeedForward, PrunedAttention
from weft.nn.bidirectional import Bidirectional
from weft.nn.choices import ROPE_THETA
from weft.nn.conformer import ConvModule, HalfStep
from weft.nn.dropout import IntegerDropout
from weft.nn.experts import ChoosesExperts, Experts, HasMatrices, MixtureOfExperts, Router
from weft.nn.pooling import POOLINGS, BidirectionalLastPooling
from weft.nn.positions import (
    AlibiBias,
    HasPositions,
    LearnedPositions,
    PositionEncoding,
    RelativeBias,
    RelativePositions,
    RotaryEmbedding,
    SinusoidalPositions,
)
from weft.nn.skip_connections import Connection, Dense, Highway, NoSkip, PostNormResidual, Residual
from weft.nn.stack import Layer, Stack


def norm(name: str, dim: int, *, eps: float | None = None) -> nn.Module:
    match name:
        case "layernorm":
            return nn.LayerNorm(dim, 1e-5 if eps is None else eps)
        case "rmsnorm":
            return nn.RMSNorm(dim, eps)
    return nn.Identity()


def connection(config: StackConfig, depth: int) -> Connection:
    match config.skip_connection:
        case "residual" if config.is_post_norm:
            return PostNormResidual(norm(config.norm, config.hidden_size, eps=config.norm_eps))
        case "residual":
            return Residual()
        case "highway":
            return Highway(config.hidden_size)
        case "dense":
            return Dense(config.hidden_size, depth=depth)
    return NoSkip()


def input_position_encoding(name: str, dim: int, *, max_positions: int) -> PositionEncoding:
    """The position encoding that is added to the input of a stack."""
    match name:
        case "sinusoidal":
            return SinusoidalPositions(dim)
        case "learned":
            return LearnedPositions(dim, max_positions=max_positions)
    return PositionEncoding()


def attention_position_encoding(
    name: str,
    *,
    num_heads: int,
    head_dim: int,
    bidirectional: bool = False,
    slopes: Sequence[float] | None = None,
    rope_theta: float | None = None,
    context_length: int | None = None,
) -> PositionEncoding:
    """The position encoding inside attention; `context_length` is the number of positions it is trained with, if known."""
    match name:
        case "relative":
            return RelativePositions(head_dim)
        case "relative-bias":
            return RelativeBias(num_heads, bidirectional=bidirectional)
        case "alibi":
            return AlibiBias(num_heads, slopes=slopes)
        case "rotary":
            return RotaryEmbedding(head_dim, theta=rope_theta or ROPE_THETA, num_stored=context_length or 0)
    return PositionEncoding()


def with_bias(config: StackConfig, module: nn.Module) -> nn.Module:
    """Attention or a feed-forward layer, without the biases of its linear layers if the configuration has none."""
    for layer in module.modules() if config.bias is False else ():
        if isinstance(layer, nn.Linear):
            layer.register_parameter("bias", None)
    return module


def share_positions(mixers: Sequence[nn.Module]) -> None:
    """Make all layers of a stack use the position encoding of the first, if it is one that is shared."""
    owners = [module for module in mixers if isinstance(module, HasPositions) and module.position_encoding().is_shared]
    for module in owners[1:]:
        module.share_positions(owners[0].position_encoding())


# options that `attention` converts to arguments; all other options are passed on unchanged
ATTENTION_OPTIONS = (
    "num_heads", "head_dim", "qk_norm", "alibi_slopes", "rope_theta", "attention_dropout", "bias", "conv_kernel",
)  # fmt: skip


def attention(config: StackConfig, layer: int, context_length: int | None) -> nn.Module:
    """The attention mixer of one layer."""
    num_heads, head_dim = config.heads_in_layer(layer)
    if not num_heads:
        return PrunedAttention(config.hidden_size)
    slopes = None if config.alibi_slopes is None else config.alibi_slopes[layer]
    arguments = {
        "num_heads": num_heads,
        "head_dim": head_dim,
        "positions": attention_position_encoding(
            config.position_encoding,
            num_heads=num_heads,
            head_dim=head_dim,
            bidirectional=config.bidirectional,
            slopes=slopes,
            rope_theta=config.rope_theta,
            context_length=context_length,
        ),
        "qk_norm": nn.RMSNorm(head_dim, elementwise_affine=False) if config.qk_norm else None,
        "dropout": config.attention_dropout or 0.0,
        **{option: value for option, value in config.mixer_options().items() if option not in ATTENTION_OPTIONS},
    }
    factory = config.traits.bidirectional_factory if config.bidirectional else None
    if factory is not None:  # StackConfig rejects `bidirectional` for attention without a bidirectional form
        return with_bias(config, factory(config.hidden_size, **arguments))
    return with_bias(config, config.traits.factory(config.hidden_size, context_length=context_length, **arguments))


def mixer(config: StackConfig, layer: int, context_length: int | None, *, input_size: int) -> nn.Module:
    """The mixer of one layer. Attention ignores `input_size`: its input has the hidden size."""
    traits, options = config.traits, config.mixer_options()
    if traits.attends:
        return attention(config, layer, context_length)
    if not config.bidirectional:
        return traits.factory(config.hidden_size, input_size=input_size, **options)
    if (factory := traits.bidirectional_factory) is not None:
        return factory(config.hidden_size, input_size=input_size, **options)
    forward_mixer, backward_mixer = (
        traits.factory(config.hidden_size // 2, input_size=input_size, **options) for _ in range(2)
    )
    return Bidirectional(forward_mixer, backward_mixer)


def build_stack(
    config: StackConfig,
    mixers: Sequence[nn.Module],
    positions: PositionEncoding,
    *,
    input_size: int,
    dropout_on_top: bool = True,
    dropout_type: Callable[[float], nn.Module] = IntegerDropout,
) -> Stack:
    """A stack of these mixers, each in a layer with the norm, skip connection and dropout of the configuration.

    With `dropout_on_top=False`, the last layer has no dropout.
    """
    share_positions(mixers)
    # post-norm layers normalize their outputs: no norm before mixers, and no final norm
    norm_name = "none" if config.is_post_norm else config.norm
    dropouts = [config.dropout] * (len(mixers) - 1) + [config.dropout if dropout_on_top else 0.0]
    # an input of another size cannot be added or gated: the first layer then has no skip connection
    num_unskipped = int(input_size != config.hidden_size)
    layers = []
    for depth, (module, dropout) in enumerate(zip(mixers, dropouts, strict=True)):
        unskipped = depth < num_unskipped
        skip = NoSkip() if unskipped else connection(config, depth - num_unskipped)
        pre_norm = norm(norm_name, input_size if unskipped else config.hidden_size, eps=config.norm_eps)
        layer_index = depth * config.num_layers // len(mixers)
        layers.append(Layer(module, skip, norm=pre_norm, dropout=dropout_type(dropout), layer_index=layer_index))
    if config.conv_kernel is not None:  # a Conformer layer ends with a norm
        for layer in layers[3::4]:
            layer.connection = PostNormResidual(norm(config.norm, config.hidden_size, eps=config.norm_eps))
    final_norm = norm(norm_name, config.hidden_size, eps=config.norm_eps)
    if config.skip_connection == "dense":  # the top of the stack is the concatenation of all layers
        num_outputs = len(layers) + 1 - num_unskipped
        final_norm = nn.Sequential(nn.Linear(num_outputs * config.hidden_size, config.hidden_size), final_norm)
    return Stack(layers, positions=positions, final_norm=final_norm)


def feed_forward(config: StackConfig) -> list[nn.Module]:
    """The feed-forward layer that follows each mixer, as a list of one, or an empty list."""
    if not config.ffn_dim:
        return []
    if config.num_experts is not None:
        return [mixture_of_experts(config)]
    layer = FeedForward(config.hidden_size, ffn_dim=config.ffn_dim, activation=config.activation or "gelu")
    return [with_bias(config, layer)]


def mixture_of_experts(config: StackConfig) -> MixtureOfExperts:
    """The feed-forward layer of a configuration with experts."""
    dim, ffn_dim, activation = config.hidden_size, config.ffn_dim or 0, config.activation or "gelu"
    num_experts, num_shared = config.num_experts or 0, config.num_shared_experts or 0
    shared = None
    if num_shared:
        shared = FeedForward(dim, ffn_dim=num_shared * ffn_dim, activation=activation, bias=False)
    return MixtureOfExperts(
        Router(dim, num_experts=num_experts, experts_per_token=config.experts_per_token or 0),
        Experts(dim, num_experts=num_experts, ffn_dim=ffn_dim, activation=activation),
        shared=shared,
        balance_loss_weight=config.balance_loss_weight or 0.0,
    )


def sublayers(config: StackConfig, mixer: nn.Module) -> list[nn.Module]:
    """The sublayers of a layer with this mixer: a feed-forward sublayer follows it; in a Conformer, half of one is before it,
    and a convolution and the other half are after it."""
    if config.conv_kernel is None:
        return [mixer, *feed_forward(config)]
    first, second = (HalfStep(sublayer) for _ in range(2) for sublayer in feed_forward(config))
    conv = ConvModule(config.hidden_size, kernel_size=config.conv_kernel, causal=not config.bidirectional)
    return [first, mixer, conv, second]


def stack(
    config: StackConfig,
    *,
    context_length: int,
    input_size: int | None = None,
    dropout_on_top: bool = True,
    dropout_type: Callable[[float], nn.Module] = IntegerDropout,
) -> Stack:
    """The stack of a resolved configuration. `context_length` is the number of positions it is trained with."""
    input_size, mixers = input_size or config.hidden_size, list[nn.Module]()
    for layer in range(config.num_layers):
        first = mixer(config, layer, context_length, input_size=config.hidden_size if layer else input_size)
        mixers += sublayers(config, first)
    positions = input_position_encoding(config.position_encoding, input_size, max_positions=context_length)
    return build_stack(
        config, mixers, positions, input_size=input_size, dropout_on_top=dropout_on_top, dropout_type=dropout_type
    )


def build_pooling(name: str, config: StackConfig) -> nn.Module:
    """The pooling over the output of a stack of this configuration."""
    if name == "last" and config.bidirectional and config.traits.bidirectional is None:
        return BidirectionalLastPooling()  # each direction has its own last token
    return POOLINGS[name](config.hidden_size)


def muon_parameters(stack: Stack, prefix: str) -> set[str]:
    """Names of the weight matrices inside a stack, which Muon optimizes; `prefix` is the stack's name in the model. Routers
    are not among them: they are classifiers, like an output layer."""
    modules = dict(stack.layers.named_modules())
    skipped = tuple(f"{name}." for name, module in modules.items() if isinstance(module, nn.Embedding | ChoosesExperts))
    experts = tuple(f"{name}." for name, module in modules.items() if isinstance(module, HasMatrices))
    weights = stack.layers.named_parameters()
    names = [name for name, weight in weights if weight.dim() == 2 or name.startswith(experts)]
    return {f"{prefix}.layers.{name}" for name in names if not name.startswith(skipped)}


def init_projections(stack: Stack, init_matrix: Callable[[Tensor], object]) -> None:
    """Initialize the matrices of attention and feed-forward layers, in place; biases are 0. Skip connections keep their own."""
    for name, module in stack.layers.named_modules():
        if ".mixer." not in name:
            continue
        if isinstance(module, nn.Linear):
            init_matrix(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, HasMatrices):
            for matrix in module.matrices:
                init_matrix(matrix)


def init_gpt2(stack: Stack) -> None:
    """Initialize attention and feed-forward layers as in GPT-2: N(0, 0.02)."""
    init_projections(stack, partial(nn.init.normal_, std=0.02))


def scale_residual_projections(model: nn.Module, factor: float) -> None:
    """Scale the projections into the residual stream, so that a deep stack starts near the identity (GPT-2)."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("to_out.weight"):
                weight.mul_(factor)
