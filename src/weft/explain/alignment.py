"""Alignments from cross-attention.

Shapes: B batch, T target positions, S source positions, L layers with cross-attention, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import UsageError
from weft.explain.hooks import attention_weights, record_activations
from weft.nn.cross_attention import AttendsToMemory
from weft.plots.heatmap import heatmap

TokenBatch = tuple[Tensor, Tensor]  # tokens and token mask, each (B, T)


class Alignment(NamedTuple):
    source_tokens: list[str]
    target_tokens: list[str]
    weights: np.ndarray  # (T, S); each row sums to 1

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source_tokens,
            "target": self.target_tokens,
            "weights": [[round(weight, 4) for weight in row] for row in self.weights.tolist()],
        }

    def _repr_html_(self) -> str:
        """The heatmap as HTML, for notebooks."""
        return self.to_svg("")

    def to_svg(self, title: str) -> str:
        """The alignment as a heatmap."""
        return heatmap(
            self.weights, rows=self.target_tokens, columns=self.source_tokens, title=title, axes=("output", "source")
        )


def cross_attention_modules(model: nn.Module) -> list[str]:
    """The names of the cross-attention modules, lowest first."""
    modules = model.named_modules()
    return [f"{name}.attend" for name, module in modules if isinstance(module, AttendsToMemory) and module.to_source]


def check_source_attention(model: nn.Module) -> list[str]:
    """The names of the cross-attention modules; raises UsageError if there are none."""
    names = cross_attention_modules(model)
    if not names:
        raise UsageError("alignments", "the model has no cross-attention", "train one with model.attention = 'additive'")
    return names


def _check_index(name: str, number: int | None, count: int) -> None:
    if number is not None and not 1 <= number <= count:
        raise UsageError(name, f"must be from 1 to {count}, got {number}")


def _select(layers: list[Tensor], layer: int | None, head: int | None) -> Tensor:
    """L times (B, H, T, S) -> (B, T, S): one layer and head, or the mean. The number of heads may differ between layers."""
    _check_index("layer", layer, len(layers))
    selected = layers if layer is None else [layers[layer - 1]]
    _check_index("head", head, min(weights.size(1) for weights in selected))
    return torch.stack([weights.mean(1) if head is None else weights[:, head - 1] for weights in selected]).mean(0)


@torch.no_grad()
def recorded_attention(
    model: nn.Module, decode: Callable[[], object], *, layer: int | None = None, head: int | None = None
) -> Tensor:
    """Cross-attention weights (B, T, S) while `decode` runs the decoder of a model over T tokens."""
    names = check_source_attention(model)
    with record_activations(model, names) as activations:
        decode()
    # attention before the step and input feeding are called once per position
    layers = [torch.cat([attention_weights(call) for call in activations if call.name == name], dim=2) for name in names]
    return _select(layers, layer, head)


@torch.no_grad()
def source_attention_weights(
    model: Any, source: TokenBatch, target: TokenBatch, *, layer: int | None = None, head: int | None = None
) -> list[np.ndarray]:
    """Cross-attention weights (T, S) of each example: row t has the weights for predicting target token t, <s> excluded.

    One forward pass over the target gives the same weights as the search that generated it.
    """
    state = model.encode(*source)
    recorded = recorded_attention(model, lambda: model(target[0][:, :-1], state), layer=layer, head=head)
    weights = recorded.float().cpu().numpy()
    target_lengths, source_lengths = target[1].sum(1).tolist(), source[1].sum(1).tolist()
    return [row[: t - 1, :s] for row, t, s in zip(weights, target_lengths, source_lengths, strict=True)]
