"""A linear reward model: Bradley-Terry regression of preferences on sparse features, fitted by L-BFGS in float64.

    minimize  C * sum_i -ln sigmoid(r(chosen_i) - r(rejected_i)) + ||w||^2 / 2,  r(x) = x w

This is logistic regression on the differences of features, without a bias, which cancels. The objective is convex.

Shapes: M texts, F features, N pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from weft.models.linear import transposed
from weft.models.linear_fit import matmul
from weft.text.features import Sparse

TOLERANCE = 1e-4  # largest entry of the gradient at convergence, relative to C N
MAX_STEPS, HISTORY_SIZE = 500, 10


def fit(
    features: Sparse, pairs: NDArray[np.int64], C: float, progress: Callable[[int], None] | None = None
) -> NDArray[np.float64]:
    """The weights (F,) for texts with `features` (M, F), of which the first of each of the `pairs` (N, 2) was preferred."""
    columns = transposed(features)
    chosen, rejected = torch.from_numpy(pairs[:, 0]), torch.from_numpy(pairs[:, 1])
    weight = torch.zeros(features.columns, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        [weight],
        max_iter=MAX_STEPS,
        history_size=HISTORY_SIZE,
        tolerance_grad=TOLERANCE * C * len(pairs),
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    steps = 0

    def evaluate() -> torch.Tensor:
        nonlocal steps
        steps += 1
        if progress is not None:
            progress(steps)
        rewards = matmul(features, weight[:, None])[:, 0]
        margins = rewards[chosen] - rewards[rejected]
        slopes = torch.zeros(features.rows, dtype=torch.float64)
        slope = -C * torch.sigmoid(-margins)
        slopes.index_add_(0, chosen, slope).index_add_(0, rejected, -slope)
        weight.grad = matmul(columns, slopes[:, None])[:, 0] + weight
        return -C * torch.nn.functional.logsigmoid(margins).sum() + weight.square().sum() / 2

    optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    return weight.numpy()
