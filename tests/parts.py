"""Small parts that the contract tests run over."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from weft.models import build
from weft.models.build import inside_positions, stack
from weft.models.tables import CONNECTIONS, INSIDE, StackTable
from weft.nn.attention import FeedForward, SelfAttention
from weft.nn.mixers import MIXERS

DIM = 8


def attention(*, window: int | None = None, positions: str = "none", norm: bool = False) -> SelfAttention:
    inner = nn.RMSNorm(DIM // 2, elementwise_affine=False) if norm else None
    where = inside_positions(positions, heads=2, head_size=DIM // 2)
    return SelfAttention(DIM, heads=2, positions=where, inner_norm=inner, window=window)


def table(**options: object) -> StackTable:
    return StackTable(**{"width": DIM, "layers": 2, **options}).filled()  # type: ignore[arg-type]


def mixer(name: str, **options: object) -> nn.Module:
    """As a stack would have it, with the defaults of its row."""
    if MIXERS[name].attends:
        options = {"heads": 2, **options}
    return build.mixer(table(mixer=name, **options), 0, None, inlet=DIM)


MIXER_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: mixer(name) for name in MIXERS},
    **{f"attention-{kind}": lambda kind=kind: attention(positions=kind) for kind in INSIDE},
    **{f"rnn-{kind}": lambda kind=kind: mixer("rnn", nonlinearity=kind) for kind in ("relu", "sigmoid")},
    "window-relu": lambda: mixer("window", nonlinearity="relu"),
    "attention-window-3": lambda: attention(window=3),
    "attention-window-3-rotary-qk": lambda: attention(window=3, positions="rotary", norm=True),
    "feed-forward": lambda: FeedForward(DIM, hidden=16, activation="gated"),
}


STACKS: dict[str, StackTable] = {
    **{f"rnn-{kind}": table(mixer="rnn", connection=kind, norm="layer") for kind in CONNECTIONS},
    **{f"attention-{kind}": table(mixer="attention", connection=kind, norm="layer") for kind in CONNECTIONS},
    **{f"{mixer}-{where}": table(mixer=mixer, positions=where) for mixer in MIXERS for where in ("sinusoidal", "learned")},
    **{f"attention-{where}": table(mixer="attention", positions=where, norm="rms", connection="residual") for where in INSIDE},
    "heads-per-layer": table(mixer="attention", heads=[1, 4], head_size=4, qk_norm=True),
    "heads-lost": table(
        mixer="attention", heads=[0, 2], head_size=4, positions="alibi", slopes=[[], [0.5, 0.01]], connection="residual"
    ),
    "rnn-sigmoid": table(mixer="rnn", nonlinearity="sigmoid"),
    "lstm-feed-forward": table(mixer="lstm", feed_forward=16, activation="squared-relu", connection="residual"),
}


def build_stack(name: str, *, window: int = 32) -> nn.Module:
    torch.manual_seed(0)
    return shaken(stack(STACKS[name], window=window)).eval()


def build_mixer(name: str) -> nn.Module:
    torch.manual_seed(0)
    return shaken(MIXER_BUILDERS[name]()).eval()


def shaken(module: nn.Module) -> nn.Module:
    """Weights large enough that a wrong mask or a lost state shows."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return module
