"""Small mixers and stacks for the contract tests."""

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


def attention(*, window: int | None = None, positions: str = "none", norm: bool = False) -> SelfAttention:
    qk_norm = nn.RMSNorm(DIM // 2, elementwise_affine=False) if norm else None
    encoding = attention_position_encoding(positions, num_heads=2, head_dim=DIM // 2)
    return SelfAttention(DIM, num_heads=2, positions=encoding, qk_norm=qk_norm, context_length=window)


def table(**options: object) -> StackConfig:
    return StackConfig(**{"hidden_size": DIM, "num_layers": 2, **options}).with_defaults()  # type: ignore[arg-type]


def mixer(name: str, **options: object) -> nn.Module:
    """Build a mixer as a stack does, with the defaults of its row."""
    if MIXERS[name].attends:
        options = {"num_heads": 2, **options}
    return build.mixer(table(layer_type=name, **options), 0, None, input_size=DIM)


MIXER_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: mixer(name) for name in MIXERS},
    **{f"attention-{kind}": lambda kind=kind: attention(positions=kind) for kind in ATTENTION_ENCODINGS},
    **{f"rnn-{kind}": lambda kind=kind: mixer("rnn", nonlinearity=kind) for kind in ("relu", "sigmoid")},
    "conv-relu": lambda: mixer("conv", nonlinearity="relu"),
    "attention-window-3": lambda: attention(window=3),
    "attention-window-3-rotary-qk": lambda: attention(window=3, positions="rotary", norm=True),
    "feed-forward": lambda: FeedForward(DIM, ffn_dim=16, activation="swiglu"),
}


STACKS: dict[str, StackConfig] = {
    **{f"rnn-{kind}": table(layer_type="rnn", skip_connection=kind, norm="layernorm") for kind in CONNECTIONS},
    **{f"attention-{kind}": table(layer_type="attention", skip_connection=kind, norm="layernorm") for kind in CONNECTIONS},
    **{
        f"{mixer}-{where}": table(layer_type=mixer, position_encoding=where)
        for mixer in MIXERS
        for where in ("sinusoidal", "learned")
    },
    **{
        f"attention-{where}": table(layer_type="attention", position_encoding=where, norm="rmsnorm", skip_connection="residual")
        for where in ATTENTION_ENCODINGS
    },
    "heads-per-layer": table(layer_type="attention", num_heads=[1, 4], head_dim=4, qk_norm=True),
    "pruned-heads": table(
        layer_type="attention",
        num_heads=[0, 2],
        head_dim=4,
        position_encoding="alibi",
        alibi_slopes=[[], [0.5, 0.01]],
        skip_connection="residual",
    ),
    "rnn-sigmoid": table(layer_type="rnn", nonlinearity="sigmoid"),
    "lstm-feed-forward": table(layer_type="lstm", ffn_dim=16, activation="squared-relu", skip_connection="residual"),
}


def build_stack(name: str, *, window: int = 32) -> nn.Module:
    torch.manual_seed(0)
    return shaken(stack(STACKS[name], context_length=window)).eval()


def build_mixer(name: str) -> nn.Module:
    torch.manual_seed(0)
    return shaken(MIXER_BUILDERS[name]()).eval()


def shaken(module: nn.Module) -> nn.Module:
    """Enlarge the weights until a wrong mask or a lost state shows."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return module
