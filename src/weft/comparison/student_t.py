"""Student's t distribution, without SciPy."""

from __future__ import annotations

import math

NORMAL_DOF = 1e5  # from here on the normal distribution is exact to 1e-5
MAX_TERMS, TOLERANCE = 500, 1e-15


def _continued_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (Lentz's method; DLMF 8.17.22), for x < (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1.0 / (1.0 + term * d), 1.0 + term / c
            value *= c * d
        if abs(c * d - 1.0) < TOLERANCE:
            break
    return value


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    log_factor = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_factor) * _continued_fraction(a, b, x) / a
    return 1.0 - math.exp(log_factor) * _continued_fraction(b, a, 1 - x) / b


def two_sided_p(t: float, dof: float) -> float:
    """The two-sided p-value of `t`."""
    if math.isinf(t):
        return 0.0
    if dof >= NORMAL_DOF:
        return math.erfc(abs(t) / math.sqrt(2))
    return _incomplete_beta(dof / 2, 0.5, dof / (dof + t * t))


def quantile(p: float, dof: float) -> float:
    """The t whose two-sided p-value is `p`, by bisection."""
    low, high = 0.0, 1.0
    while two_sided_p(high, dof) > p:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, dof) > p else (low, middle)
    return high
