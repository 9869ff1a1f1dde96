"""Where a decoder looked in its source while it wrote.

Shapes: B rows, T target positions, S source positions, L layers that attend, H heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import UsageError
from weft.explain.watch import pattern, watch

Rows = tuple[Tensor, Tensor]  # tokens and what of them to keep, (B, T) each


class Alignment(NamedTuple):
    source: list[str]
    target: list[str]
    weights: np.ndarray  # (T, S), each row adds up to 1

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "weights": [[round(w, 4) for w in row] for row in self.weights.tolist()],
        }


def attends_to_source(model: nn.Module) -> list[str]:
    """The names of the leaves that weigh source positions, lowest first."""
    return [f"{name}.attend" for name, part in model.named_modules() if getattr(part, "to_source", False)]


def _chosen(weights: Tensor, layer: int | None, head: int | None) -> Tensor:
    """(B, L, H, T, S) -> (B, T, S): of one layer and head, or of the mean."""
    for name, number, count in (("layer", layer, weights.size(1)), ("head", head, weights.size(2))):
        if number is not None and not 1 <= number <= count:
            raise UsageError(f"--{name}: must be from 1 to {count}, not {number}")
    weights = weights.mean(1) if layer is None else weights[:, layer - 1]
    return weights.mean(1) if head is None else weights[:, head - 1]


@torch.no_grad()
def attention_weights(
    model: Any, source: Rows, target: Rows, *, layer: int | None = None, head: int | None = None
) -> list[np.ndarray]:
    """(T, S) for each row: how much each target token but <s> saw of each source token, before it was written.

    The target is read once, whatever search found it: a beam's winner looks where it looked then.
    """
    names = attends_to_source(model)
    if not names:
        raise UsageError("alignments: this model has no attention to its source; train one with model.attention = 'additive'")
    state = model.encode(*source)
    with watch(model, names) as seen:
        model(target[0][:, :-1], state)
    # attention before a step, and input feeding, look once for each position
    layers = [torch.cat([pattern(one) for one in seen if one.name == name], dim=2) for name in names]
    if len({found.size(1) for found in layers}) > 1:  # a number of heads for each layer: their means can be stacked
        layers = [found.mean(1, keepdim=True) for found in layers]
    weights = _chosen(torch.stack(layers, dim=1), layer, head).float().cpu().numpy()
    sizes = zip(target[1].sum(1).tolist(), source[1].sum(1).tolist(), strict=True)
    return [found[: length - 1, :width] for found, (length, width) in zip(weights, sizes, strict=True)]
