"""Temperature scaling (Guo et al. 2017): calibrates probabilities by dividing the logits by a single number T.

The log loss is convex in b = 1/T, so its derivative changes sign at most once. Newton's method finds the root, with bisection
as a safeguard. Logits may be unnormalized or log-probabilities.

If all N predictions are correct, the log loss decreases without bound as T approaches 0. T is then fitted to the targets
(N + 1) / (N + 2) of Laplace's rule of succession (Platt 1999) instead of 1, and is at most 1, because no error in the data
justifies less confidence.

Shapes: N examples, K labels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.metrics.items import Array

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.1, 10.0  # without a bound, T is infinite if all predictions are wrong
MAX_LOGIT_GAP = 1e4  # larger differences of logits are clipped: their probability is 0 at any T, and -inf would give NaN


def _minimize(derivatives: Callable[[float], tuple[float, float]]) -> float:
    """Minimizer b = 1/T of a convex function within the bounds of T; `derivatives` returns the first and second derivative."""
    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    if derivatives(low)[0] >= 0:
        return low
    if derivatives(high)[0] <= 0:
        return high
    b = 1.0
    for _ in range(100):  # bisection alone needs fewer than 60
        first, second = derivatives(b)
        low, high = (b, high) if first < 0 else (low, b)
        newton = b - first / second if second > 0 else low
        next_b = newton if low < newton < high else (low + high) / 2
        if abs(next_b - b) < 1e-12 * b:
            break
        b = next_b
    return b


def softmax_temperature(logits: Array, gold: Array) -> float:
    """T for softmax(logits / T): logits (N, K), gold (N,). Examples with gold -1, a label unknown to the model, are ignored."""
    is_known = gold >= 0
    if not is_known.any():
        return 1.0
    logits = logits[is_known].astype(np.float64)
    logits = np.maximum(logits - logits.max(1, keepdims=True), -MAX_LOGIT_GAP)
    n, k = logits.shape
    target_logits = logits[np.arange(n), gold[is_known]]
    all_correct = k > 1 and not target_logits.any()
    if all_correct:
        # the expected logit if the other labels share the probability 1 / (N + 2); the gold label's own logit is 0
        target_logits = logits.sum(1) / (k - 1) / (n + 2)

    def derivatives(b: float) -> tuple[float, float]:
        probs = np.exp(b * logits)
        probs /= probs.sum(1, keepdims=True)
        mean = (probs * logits).sum(1)
        variance = (probs * np.square(logits)).sum(1) - np.square(mean)
        return float((mean - target_logits).mean()), float(variance.mean())

    temperature = 1 / _minimize(derivatives)
    return min(1.0, temperature) if all_correct else temperature


def sigmoid_temperature(logits: Array, gold: Array) -> float:
    """T for sigmoid(logits / T), shared by all labels: logits (N, K), gold (N, K) bool."""
    if not logits.size:
        return 1.0
    logits, targets = np.clip(logits.astype(np.float64), -MAX_LOGIT_GAP, MAX_LOGIT_GAP), gold.astype(np.float64)
    all_correct = not np.where(gold, logits <= 0, logits >= 0).any()
    if all_correct:
        targets = np.where(gold, logits.size + 1, 1) / (logits.size + 2)

    def derivatives(b: float) -> tuple[float, float]:
        probs = 0.5 * (1 + np.tanh(0.5 * b * logits))  # the sigmoid, without overflow
        return float(((probs - targets) * logits).mean()), float((probs * (1 - probs) * np.square(logits)).mean())

    temperature = 1 / _minimize(derivatives)
    return min(1.0, temperature) if all_correct else temperature
