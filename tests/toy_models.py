"""Toy mixers and stacks for the contract tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from weft.models import build
from weft.models.build import attention_position_encoding, stack
from weft.models.config import ATTENTION_ENCODINGS, CONNECTIONS, StackConfig
from weft.nn.attention import FeedForward, SelfAttention
from weft.nn.mixers import MIXERS

DIM = 8


def attention(*, context_length: int | None = None, positions: str = "none", qk_norm: bool = False) -> SelfAttention:
    norm = nn.RMSNorm(DIM // 2, elementwise_affine=False) if qk_norm else None
    encoding = attention_position_encoding(positions, num_heads=2, head_dim=DIM // 2)
    return SelfAttention(DIM, num_heads=2, positions=encoding, qk_norm=norm, context_length=context_length)


def stack_config(**options: object) -> StackConfig:
    return StackConfig(**{"hidden_size": DIM, "num_layers": 2, **options}).with_defaults()  # type: ignore[arg-type]


def mixer(name: str, **options: object) -> nn.Module:
    """Build a mixer as a stack does, with the defaults of its type."""
    if MIXERS[name].attends:
        options = {"num_heads": 2, **options}
    return build.mixer(stack_config(layer_type=name, **options), 0, None, input_size=DIM)


MIXER_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: mixer(name) for name in MIXERS},
    **{f"attention-{encoding}": lambda encoding=encoding: attention(positions=encoding) for encoding in ATTENTION_ENCODINGS},
    **{f"rnn-{name}": lambda name=name: mixer("rnn", nonlinearity=name) for name in ("relu", "sigmoid")},
    "conv-relu": lambda: mixer("conv", nonlinearity="relu"),
    "attention-window-3": lambda: attention(context_length=3),
    "attention-window-3-rotary-qk": lambda: attention(context_length=3, positions="rotary", qk_norm=True),
    "feed-forward": lambda: FeedForward(DIM, ffn_dim=16, activation="swiglu"),
    "experts": lambda: build.mixture_of_experts(
        stack_config(layer_type="attention", ffn_dim=16, num_experts=4, num_shared_experts=1)
    ),
}


STACKS: dict[str, StackConfig] = {
    **{
        f"rnn-{connection}": stack_config(layer_type="rnn", skip_connection=connection, norm="layernorm")
        for connection in CONNECTIONS
    },
    **{
        f"attention-{connection}": stack_config(layer_type="attention", skip_connection=connection, norm="layernorm")
        for connection in CONNECTIONS
    },
    **{
        f"{mixer}-{encoding}": stack_config(layer_type=mixer, position_encoding=encoding)
        for mixer in MIXERS
        for encoding in ("sinusoidal", "learned")
    },
    **{
        f"attention-{encoding}": stack_config(
            layer_type="attention", position_encoding=encoding, norm="rmsnorm", skip_connection="residual"
        )
        for encoding in ATTENTION_ENCODINGS
    },
    "heads-per-layer": stack_config(layer_type="attention", num_heads=[1, 4], head_dim=4, qk_norm=True),
    "pruned-heads": stack_config(
        layer_type="attention",
        num_heads=[0, 2],
        head_dim=4,
        position_encoding="alibi",
        alibi_slopes=[[], [0.5, 0.01]],
        skip_connection="residual",
    ),
    **{
        f"conformer-{size}-{encoding}": stack_config(
            layer_type="attention", conv_kernel=size, position_encoding=encoding, skip_connection="residual", norm="layernorm"
        )
        for size, encoding in ((1, "rotary"), (4, "relative"))
    },
    **{
        f"experts-{mixer}": stack_config(
            layer_type=mixer, ffn_dim=16, num_experts=4, experts_per_token=used, skip_connection="residual", norm="layernorm"
        )
        for mixer, used in (("attention", 2), ("lstm", 1))
    },
    "rnn-sigmoid": stack_config(layer_type="rnn", nonlinearity="sigmoid"),
    "lstm-feed-forward": stack_config(layer_type="lstm", ffn_dim=16, activation="squared-relu", skip_connection="residual"),
}


def build_stack(name: str, *, context_length: int = 32) -> nn.Module:
    torch.manual_seed(0)
    return enlarge_weights(stack(STACKS[name], context_length=context_length)).eval()


def build_mixer(name: str) -> nn.Module:
    torch.manual_seed(0)
    return enlarge_weights(MIXER_BUILDERS[name]()).eval()


def enlarge_weights(module: nn.Module) -> nn.Module:
    """Add noise to the weights, so that a wrong mask or a lost state changes the output."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return module
