"""Who hears how far an explanation has come."""

from __future__ import annotations

from collections.abc import Callable

Telling = Callable[[float, str], None]  # the share of the work that is done, and how much that is, in words


def untold(share: float, detail: str) -> None:
    """Nobody hears of it."""


def part_of(telling: Telling, low: float, high: float) -> Telling:
    """For work that is a part of a larger one, from one share of that to another."""
    return lambda share, detail: telling(low + (high - low) * share, detail)


def one_of(telling: Telling, at: int, total: int, unit: str) -> Telling:
    """For one piece of work of several, the one after the first `at` of them."""
    detail = f"{at:,} of {total:,} {unit}" if total > 1 else ""
    telling(at / total, detail)
    return lambda share, _: telling((at + share) / total, detail)
