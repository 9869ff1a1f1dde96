"""Progress callbacks of explanations."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]  # fraction done, detail


def no_progress(fraction: float, detail: str) -> None:
    """Ignore progress."""


def sub_progress(progress: ProgressCallback, low: float, high: float) -> ProgressCallback:
    """A callback for a part of the work, from fraction `low` to `high`."""
    return lambda fraction, detail: progress(low + (high - low) * fraction, detail)


def item_progress(progress: ProgressCallback, index: int, total: int, unit: str) -> ProgressCallback:
    """A callback for item `index` (from 0) of `total`."""
    detail = f"{index:,} of {total:,} {unit}" if total > 1 else ""
    progress(index / total, detail)
    return lambda fraction, _: progress((index + fraction) / total, detail)
