"""Whether the lines of two parallel texts belong together, told by nothing but their lengths.

A translation is about as long as its source, so the logarithms of two lengths that belong together differ by about what
they do everywhere. What a pair is off by counts no more than MOST, so that one odd line does not outweigh many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MAX_ROWS = 1.0
# how many lines apart is tried, what a shift must save a line to be worth it, and in all to be believed: on a million
# lines whose lengths say nothing, chance reaches that once in hundreds of texts
SHIFTS = (1, -1, 2, -2, 3, -3)
MARGIN, BELIEVED = 0.05, 30.0


def _off(source: np.ndarray, target: np.ndarray, middle: float) -> np.ndarray:
    return np.asarray(np.minimum(np.abs(target - source - middle), MAX_ROWS))


def _scaled(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Logarithms of lengths, and the usual difference: of the medians, which no shift changes."""
    logs = np.log1p(source), np.log1p(target)
    return *logs, float(np.median(logs[1]) - np.median(logs[0]))


def first_misalignment(source: np.ndarray, target: np.ndarray) -> int:
    """From lengths (N,) and (M,), N != M: the first line, from 0, that fits better if the longer text's extra lines, all of
    them missing in one place of the other, are skipped there."""
    first, second, middle = _scaled(source, target)
    count = min(len(first), len(second))
    here = _off(first[:count], second[:count], middle)
    there = _off(first[-count:], second[-count:], middle) + MARGIN
    # what all lines are off by if the slip is before each of them, or after the last
    before, after = np.concatenate([[0.0], np.cumsum(here)]), np.concatenate([np.cumsum(there[::-1])[::-1], [0.0]])
    return int(np.argmin(before + after))


class Misalignment(NamedTuple):
    first: int  # line of the source, from 0
    last: int
    shift: int  # its target stands so many lines further on


def find_misalignment(source: np.ndarray, target: np.ndarray) -> Misalignment | None:
    """From lengths (N,) of both sides: the stretch of lines that clearly fits better some lines apart, if there is one."""
    first, second, middle = _scaled(source, target)
    here = _off(first, second, middle)
    best, found = BELIEVED, None
    for shift in SHIFTS:
        low, high = max(0, -shift), min(len(first), len(first) - shift)
        if high <= low:
            continue
        gain = here[low:high] - _off(first[low:high], second[low + shift : high + shift], middle) - MARGIN
        sums = np.concatenate([[0.0], np.cumsum(gain)])
        # the stretch with the largest sum: where it ends, and the lowest point before
        end = int(np.argmax(sums - np.minimum.accumulate(sums)))
        start = int(np.argmin(sums[: end + 1]))
        if sums[end] - sums[start] > best:
            best, found = float(sums[end] - sums[start]), Misalignment(low + start, low + end - 1, shift)
    return found
