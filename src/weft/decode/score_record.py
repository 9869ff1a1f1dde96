"""The score of a text as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.tasks.spec import Scored


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def score_record(line: Scored, *, per_token: bool) -> dict[str, Any]:
    """A scored line; a log-probability of minus infinity is null."""
    values = {"text": line.text, "log_prob": _finite(line.log_prob), "perplexity": _finite(line.perplexity)}
    if not per_token:
        return {**values, "tokens": len(line.tokens)}
    pairs = zip(line.tokens, line.token_log_probs, strict=True)
    return {**values, "tokens": [{"token": token, "surprisal": _finite(-value)} for token, value in pairs]}
