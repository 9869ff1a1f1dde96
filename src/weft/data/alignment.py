"""Detects misaligned parallel texts by the lengths of their lines.

The ratio of target length to source length is similar in all aligned pairs, so the log lengths differ by about a constant. The
deviation of a pair from that constant is clipped to MAX_DEVIATION, so that one unusual pair does not outweigh many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MAX_DEVIATION = 1.0
SHIFTS = (1, -1, 2, -2, 3, -3)  # lines
# MARGIN is subtracted from the gain of every shifted line. A range of lines is reported if its total gain exceeds MIN_GAIN. In
# a million lines of unrelated lengths, this happens by chance in one of several hundred texts.
MARGIN, MIN_GAIN = 0.05, 30.0


def _deviations(source: np.ndarray, target: np.ndarray, median_difference: float) -> np.ndarray:
    return np.asarray(np.minimum(np.abs(target - source - median_difference), MAX_DEVIATION))


def _log_lengths(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Log lengths of both sides, and the difference of their medians, which does not depend on shifts."""
    source_logs, target_logs = np.log1p(source), np.log1p(target)
    return source_logs, target_logs, float(np.median(target_logs) - np.median(source_logs))


def first_misalignment(source: np.ndarray, target: np.ndarray) -> int:
    """The first misaligned line, from 0, of texts with line lengths (N,) and (M,), N != M: the line where it is best to skip
    the extra lines of the longer text, assuming that they are consecutive."""
    source_logs, target_logs, median_difference = _log_lengths(source, target)
    count = min(len(source_logs), len(target_logs))
    unshifted = _deviations(source_logs[:count], target_logs[:count], median_difference)
    shifted = _deviations(source_logs[-count:], target_logs[-count:], median_difference) + MARGIN
    # total deviation if the shift starts before each line, or after the last
    before, after = np.concatenate([[0.0], np.cumsum(unshifted)]), np.concatenate([np.cumsum(shifted[::-1])[::-1], [0.0]])
    return int(np.argmin(before + after))


class Misalignment(NamedTuple):
    """A range of source lines, from 0, whose targets are `shift` lines below."""

    first: int
    last: int  # inclusive
    shift: int


def find_misalignment(source: np.ndarray, target: np.ndarray) -> Misalignment | None:
    """The range of lines that match much better when shifted, given the line lengths (N,) of both sides; None without one."""
    source_logs, target_logs, median_difference = _log_lengths(source, target)
    unshifted = _deviations(source_logs, target_logs, median_difference)
    best_gain, result = MIN_GAIN, None
    for shift in SHIFTS:
        low, high = max(0, -shift), min(len(source_logs), len(source_logs) - shift)
        if high <= low:
            continue
        shifted = _deviations(source_logs[low:high], target_logs[low + shift : high + shift], median_difference)
        gain = unshifted[low:high] - shifted - MARGIN
        sums = np.concatenate([[0.0], np.cumsum(gain)])
        # the range with the maximum sum: its end, and the minimum before it
        end = int(np.argmax(sums - np.minimum.accumulate(sums)))
        start = int(np.argmin(sums[: end + 1]))
        if sums[end] - sums[start] > best_gain:
            best_gain, result = float(sums[end] - sums[start]), Misalignment(low + start, low + end - 1, shift)
    return result
