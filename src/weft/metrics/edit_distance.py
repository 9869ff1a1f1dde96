"""Edit distance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Minimum number of insertions, deletions and substitutions that turn `a` into `b` (Levenshtein 1966).

    Bit-parallel (Myers 1999, as simplified by Hyyrö 2003): a column of the distance matrix is two integers, whose bit i says
    whether the distance increases or decreases from row i to row i + 1. Each token of `b` costs a dozen integer operations.
    """
    if not a:
        return len(b)
    occurrences: dict[Hashable, int] = {}  # bit i is set if a[i] is the token
    for i, token in enumerate(a):
        occurrences[token] = occurrences.get(token, 0) | 1 << i
    all_bits, last_bit = (1 << len(a)) - 1, 1 << len(a) - 1
    # Vertical differences within a column, +1 and -1. The column of an empty b is 0, 1, 2, ...
    vertical_plus, vertical_minus, distance = all_bits, 0, len(a)
    for token in b:
        match = occurrences.get(token, 0)
        diagonal_zero = (((match & vertical_plus) + vertical_plus) ^ vertical_plus) | match | vertical_minus
        # horizontal differences from the previous column
        horizontal_plus = vertical_minus | ~(diagonal_zero | vertical_plus)
        horizontal_minus = vertical_plus & diagonal_zero
        distance += bool(horizontal_plus & last_bit) - bool(horizontal_minus & last_bit)
        horizontal_plus, horizontal_minus = horizontal_plus << 1 | 1, horizontal_minus << 1  # the top row is 0, 1, 2, ...
        vertical_plus = (horizontal_minus | ~(diagonal_zero | horizontal_plus)) & all_bits
        vertical_minus = horizontal_plus & diagonal_zero & all_bits
    return distance
