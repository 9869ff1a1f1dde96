"""Which of two values of a score is the better one."""

from __future__ import annotations

from weft.metrics.translation import BETTER


def is_better(name: str, value: float, than: float) -> bool:
    return value > than if BETTER[name] == "higher" else value < than
