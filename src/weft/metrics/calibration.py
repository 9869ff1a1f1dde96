"""Temperature scaling (Guo et al. 2017): one number T that divides the logits, so that probabilities are calibrated.

The log loss is convex in b = 1/T, so its slope changes sign once: Newton's steps find where, and halving keeps them within
bounds. Scores may be logits or log-probabilities. Shapes: N examples, K labels.

Where all N are right, that loss falls for ever as T does. But N right out of N make a right answer no surer than
(N + 1) / (N + 2), by Laplace's rule: T is then fitted to answers of that probability (Platt 1999), and is 1 at most, for
nothing in such data says less sure.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.metrics.items import Array

LOWEST, HIGHEST = 0.1, 10.0  # of T: data that is all wrong would have it infinite
MAX_LOG_TEMPERATURE = 1e4  # a score this much below the best has no probability at any T; -inf would make NaN


def _where_flat(slope: Callable[[float], tuple[float, float]]) -> float:
    """The b in bounds at which a rising slope is 0, or the bound that is nearest; `slope` gives its value and its own slope."""
    low, high = 1 / HIGHEST, 1 / LOWEST
    if slope(low)[0] >= 0:
        return low
    if slope(high)[0] <= 0:
        return high
    b = 1.0
    for _ in range(100):  # halving alone needs fewer than 60
        value, rise = slope(b)
        low, high = (b, high) if value < 0 else (low, b)
        step = b - value / rise if rise > 0 else low
        new = step if low < step < high else (low + high) / 2
        if abs(new - b) < 1e-12 * b:
            break
        b = new
    return b


def softmax_temperature(scores: Array, gold: Array) -> float:
    """T for softmax(scores / T), scores (N, K), gold (N,); examples of gold -1 (a label never seen) are left out."""
    seen = gold >= 0
    if not seen.any():
        return 1.0
    rows = scores[seen].astype(np.float64)
    rows = np.maximum(rows - rows.max(1, keepdims=True), -MAX_LOG_TEMPERATURE)
    targets = rows[np.arange(len(rows)), gold[seen]]
    all_right = len(rows[0]) > 1 and not targets.any()
    if all_right:
        targets = rows.sum(1) / (len(rows[0]) - 1) / (len(rows) + 2)  # of the right label itself it is 0

    def slope(b: float) -> tuple[float, float]:
        fractions = np.exp(b * rows)
        fractions /= fractions.sum(1, keepdims=True)
        mean = (fractions * rows).sum(1)
        spread = (fractions * np.square(rows)).sum(1) - np.square(mean)
        return float((mean - targets).mean()), float(spread.mean())

    temperature = 1 / _where_flat(slope)
    return min(1.0, temperature) if all_right else temperature


def sigmoid_temperature(scores: Array, gold: Array) -> float:
    """T for sigmoid(scores / T), scores (N, K), gold (N, K) bool: one number for all labels."""
    if not scores.size:
        return 1.0
    rows, targets = np.clip(scores.astype(np.float64), -MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE), gold.astype(np.float64)
    all_right = not np.where(gold, rows <= 0, rows >= 0).any()
    if all_right:
        targets = np.where(gold, rows.size + 1, 1) / (rows.size + 2)

    def slope(b: float) -> tuple[float, float]:
        fractions = 0.5 * (1 + np.tanh(0.5 * b * rows))  # the sigmoid, which overflows nowhere in this form
        return float(((fractions - targets) * rows).mean()), float((fractions * (1 - fractions) * np.square(rows)).mean())

    temperature = 1 / _where_flat(slope)
    return min(1.0, temperature) if all_right else temperature
