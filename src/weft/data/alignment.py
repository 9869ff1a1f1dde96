"""Detects misaligned parallel texts from the lengths of their lines.

A translation is about as long as its source, so the difference of the two log lengths is about the same for all aligned
lines. The deviation of a pair is clipped to MAX_DEVIATION, so that one unusual line does not outweigh many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MAX_DEVIATION = 1.0
SHIFTS = (1, -1, 2, -2, 3, -3)  # lines
# MARGIN is the minimum gain per line of a shift. A range of lines is reported if its total gain exceeds MIN_GAIN: with a
# million lines of unrelated lengths, that happens by chance in one of several hundred texts.
MARGIN, MIN_GAIN = 0.05, 30.0


def _deviations(source: np.ndarray, target: np.ndarray, usual: float) -> np.ndarray:
    return np.asarray(np.minimum(np.abs(target - source - usual), MAX_DEVIATION))


def _log_lengths(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Logarithms of both lengths, and the usual difference: that of the medians, which do not depend on shifts."""
    source_logs, target_logs = np.log1p(source), np.log1p(target)
    return source_logs, target_logs, float(np.median(target_logs) - np.median(source_logs))


def first_misalignment(source: np.ndarray, target: np.ndarray) -> int:
    """The first misaligned line, from 0, given lengths (N,) and (M,), N != M: the line at which the extra lines of the longer
    text are best skipped, assuming that they are all in one place."""
    source_logs, target_logs, usual = _log_lengths(source, target)
    count = min(len(source_logs), len(target_logs))
    unshifted = _deviations(source_logs[:count], target_logs[:count], usual)
    shifted = _deviations(source_logs[-count:], target_logs[-count:], usual) + MARGIN
    # total deviation if the shift starts before each line, or after the last
    before, after = np.concatenate([[0.0], np.cumsum(unshifted)]), np.concatenate([np.cumsum(shifted[::-1])[::-1], [0.0]])
    return int(np.argmin(before + after))


class Misalignment(NamedTuple):
    first: int  # line of the source, from 0
    last: int
    shift: int  # its target is this many lines below


def find_misalignment(source: np.ndarray, target: np.ndarray) -> Misalignment | None:
    """The range of lines that clearly match better when shifted, given lengths (N,) of both sides; None without one."""
    source_logs, target_logs, usual = _log_lengths(source, target)
    unshifted = _deviations(source_logs, target_logs, usual)
    best, result = MIN_GAIN, None
    for shift in SHIFTS:
        low, high = max(0, -shift), min(len(source_logs), len(source_logs) - shift)
        if high <= low:
            continue
        shifted = _deviations(source_logs[low:high], target_logs[low + shift : high + shift], usual)
        gain = unshifted[low:high] - shifted - MARGIN
        sums = np.concatenate([[0.0], np.cumsum(gain)])
        # the range with the largest sum: its end, and the lowest point before it
        end = int(np.argmax(sums - np.minimum.accumulate(sums)))
        start = int(np.argmin(sums[: end + 1]))
        if sums[end] - sums[start] > best:
            best, result = float(sums[end] - sums[start]), Misalignment(low + start, low + end - 1, shift)
    return result
