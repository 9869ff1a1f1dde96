"""Alignments from cross-attention.

Shapes: B rows, T target positions, S source positions, L layers that attend, H heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import UsageError
from weft.explain.hooks import attention_weights, record_activations
from weft.nn.cross_attention import AttendsToMemory
from weft.plots.heatmap import heatmap

Rows = tuple[Tensor, Tensor]  # tokens and what of them to keep, (B, T) each


class Alignment(NamedTuple):
    source_tokens: list[str]
    target_tokens: list[str]
    weights: np.ndarray  # (T, S), each row adds up to 1

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source_tokens,
            "target": self.target_tokens,
            "weights": [[round(w, 4) for w in row] for row in self.weights.tolist()],
        }

    def _repr_html_(self) -> str:
        """The heatmap, for notebooks."""
        return self.to_svg("")

    def to_svg(self, title: str) -> str:
        """The alignment as a heatmap."""
        return heatmap(
            self.weights, rows=self.target_tokens, columns=self.source_tokens, title=title, axes=("output", "source")
        )


def has_source_attention(model: nn.Module) -> list[str]:
    """The names of the cross-attention modules, lowest first."""
    return [f"{name}.attend" for name, part in model.named_modules() if isinstance(part, AttendsToMemory) and part.to_source]


def check_source_attention(model: nn.Module) -> list[str]:
    """The names of the cross-attention modules; raises UsageError if there are none."""
    names = has_source_attention(model)
    if not names:
        raise UsageError("alignments", "the model has no cross-attention", "train one with model.attention = 'additive'")
    return names


def _check_number(name: str, number: int | None, count: int) -> None:
    if number is not None and not 1 <= number <= count:
        raise UsageError(name, f"must be from 1 to {count}, got {number}")


def _chosen(layers: list[Tensor], layer: int | None, head: int | None) -> Tensor:
    """L times (B, H, T, S) -> (B, T, S): of one layer and head, or of the mean; each layer may have heads of its own number."""
    _check_number("layer", layer, len(layers))
    seen = layers if layer is None else [layers[layer - 1]]
    _check_number("head", head, min(found.size(1) for found in seen))
    return torch.stack([found.mean(1) if head is None else found[:, head - 1] for found in seen]).mean(0)


@torch.no_grad()
def source_attention_weights(
    model: Any, source: Rows, target: Rows, *, layer: int | None = None, head: int | None = None
) -> list[np.ndarray]:
    """(T, S) for each row: the cross-attention weights of each target token but <s> when it was predicted.

    The target is read once: the weights are the same as in the search that found it.
    """
    names = check_source_attention(model)
    state = model.encode(*source)
    with record_activations(model, names) as seen:
        model(target[0][:, :-1], state)
    # attention before a step, and input feeding, look once for each position
    layers = [torch.cat([attention_weights(one) for one in seen if one.name == name], dim=2) for name in names]
    weights = _chosen(layers, layer, head).float().cpu().numpy()
    sizes = zip(target[1].sum(1).tolist(), source[1].sum(1).tolist(), strict=True)
    return [found[: length - 1, :width] for found, (length, width) in zip(weights, sizes, strict=True)]
