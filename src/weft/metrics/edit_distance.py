"""Edit distance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that make `b` of `a` (Levenshtein 1966).

    A column of the table of distances is held as two whole numbers, a bit for each step down it: where it rises by one and
    where it falls (Myers 1999, in Hyyrö's form of 2003). So a token of `b` costs a dozen operations, however long `a` is.
    """
    if not a:
        return len(b)
    where: dict[Hashable, int] = {}  # token: a bit for each place in a where it stands
    for place, token in enumerate(a):
        where[token] = where.get(token, 0) | 1 << place
    every, last = (1 << len(a)) - 1, 1 << len(a) - 1
    rises, falls, distance = every, 0, len(a)  # the column of an empty b: 0, 1, 2, ...
    for token in b:
        same = where.get(token, 0)
        level = (((same & rises) + rises) ^ rises) | same | falls  # along the diagonal
        right_rises = falls | ~(level | rises)
        right_falls = rises & level
        distance += bool(right_rises & last) - bool(right_falls & last)
        right_rises, right_falls = right_rises << 1 | 1, right_falls << 1  # the top row rises with every token
        rises = (right_falls | ~(level | right_rises)) & every
        falls = right_rises & level & every
    return distance
