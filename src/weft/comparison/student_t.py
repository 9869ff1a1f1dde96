"""Student's t distribution: how far a mean strays whose variance was itself estimated, from few numbers."""

from __future__ import annotations

import math

NORMAL = 1e5  # degrees of freedom from which it is the normal distribution, within 1e-5
STEPS, CLOSE = 500, 1e-15


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (Lentz's method; DLMF 8.17.22), for x < (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1.0 / (1.0 + term * d), 1.0 + term / c
            found *= c * d
        if abs(c * d - 1.0) < CLOSE:
            break
    return found


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), regularised, from 0 to 1."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(logs) * _fraction(a, b, x) / a
    return 1.0 - math.exp(logs) * _fraction(b, a, 1 - x) / b


def two_sided_p(t: float, freedom: float) -> float:
    """The probability of a value as far from 0 as `t`, or farther, on either side."""
    if math.isinf(t):
        return 0.0
    if freedom >= NORMAL:
        return math.erfc(abs(t) / math.sqrt(2))
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def quantile(fraction: float, freedom: float) -> float:
    """The t that leaves `share` to both tails together."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > fraction:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > fraction else (low, middle)
    return high
