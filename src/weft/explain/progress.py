"""Who hears how far an explanation has come."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]  # the share of the work that is done, and how much that is, in words


def no_progress(fraction: float, detail: str) -> None:
    """Nobody hears of it."""


def sub_progress(progress: ProgressCallback, low: float, high: float) -> ProgressCallback:
    """For work that is a part of a larger one, from one share of that to another."""
    return lambda fraction, detail: progress(low + (high - low) * fraction, detail)


def item_progress(progress: ProgressCallback, at: int, total: int, unit: str) -> ProgressCallback:
    """For one piece of work of several, the one after the first `at` of them."""
    detail = f"{at:,} of {total:,} {unit}" if total > 1 else ""
    progress(at / total, detail)
    return lambda fraction, _: progress((at + fraction) / total, detail)
