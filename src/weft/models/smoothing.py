"""From counts to probabilities, by four methods, all in one form: for each n-gram kept, the probability of its last
word after the others, and for each context the weight of what the next shorter context says of words not kept after it.

    P(w | h) = p(hw)            where hw is kept
             = b(h) P(w | h')   elsewhere, h' being h without its first word; b is 1 for a context without kept n-grams

With every method the probabilities after any context sum to 1 over the words that can be predicted (`can_be`).
Sources: Chen and Goodman 1998; Heafield et al. 2013 (modified Kneser-Ney as lmplz does it, pruning included).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.models.ngram_counts import Level
from weft.models.ngram_index import Ints

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FALLBACK = (0.0, 0.5, 1.0, 1.5)  # lmplz's --discount_fallback, for adjusted counts 0, 1, 2, 3 and more


class NgramCounts(NamedTuple):
    levels: list[Level]
    kept: list[Bools]  # which rows of each level survive pruning; all of level 1
    predictable: Bools  # (V,) which words can be predicted
    delta: float  # for add-delta


class Smoothed(NamedTuple):
    """Probability of every n-gram and weight of every context, for each level; what there is to say about it."""

    probability: list[Floats]
    weight: list[Floats]
    notes: list[str]


def _by_context(values: Floats | Ints | Bools, level: Level, below: Level) -> Floats:
    """The sum of `values` over the n-grams that share a context, for every row of the level below."""
    sums: Floats = np.bincount(level.context, weights=values, minlength=len(below.word)).astype(np.float64, copy=False)
    return sums


def _over(above: Floats, below: Floats, otherwise: float) -> Floats:
    result: Floats = np.divide(above, below, out=np.full(len(above), otherwise), where=below > 0)
    return result


def _modified_discounts(counts: Ints, length: int, notes: list[str]) -> Floats:
    """What to take off adjusted counts 0, 1, 2, and 3 or more: equation 26 of Chen and Goodman, if all are in range."""
    n = np.bincount(np.minimum(counts, 5), minlength=6).astype(float)
    if n[1:4].all():
        y = n[1] / (n[1] + 2 * n[2])
        found = np.array([0.0] + [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)])
        if (found >= 0).all() and (found <= [0, 1, 2, 3]).all():
            return found
    notes.append(
        f"kneser-ney: the counts of {length}-grams give no usable discounts (small or repetitive text?): "
        f"{FALLBACK[1]:g}, {FALLBACK[2]:g} and {FALLBACK[3]:g} are used"
    )
    return np.array(FALLBACK)


def kneser_ney(counted: NgramCounts) -> Smoothed:
    """Interpolated modified Kneser-Ney: lower orders from the number of different words before an n-gram."""
    levels, notes = counted.levels, list[str]()
    probability, weight = list[Floats](), list[Floats]()
    lower = counted.predictable / counted.predictable.sum()  # below single words: all alike
    for k, level in enumerate(levels):
        adjusted = level.counts
        if k + 1 < len(levels):
            # what begins a line has nothing before it: its own count stands
            before = np.bincount(levels[k + 1].suffix, minlength=len(level.word))
            adjusted = np.where(level.leads, level.counts, before)
        discount = _modified_discounts(adjusted, k + 1, notes)[np.minimum(adjusted, 3)]
        spared = np.where(counted.kept[k], discount, adjusted)  # what pruned n-grams had goes to the shorter context too
        if k == 0:
            total = adjusted.sum()
            probability.append((adjusted - discount) / total + spared.sum() / total * lower)
            continue
        total = _by_context(adjusted, level, levels[k - 1])
        back = _over(_by_context(spared, level, levels[k - 1]), total, 1.0)
        weight.append(back)
        shorter = probability[-1][level.suffix]
        probability.append((adjusted - discount) / total[level.context] + back[level.context] * shorter)
    return Smoothed(probability, weight, notes)


def maximum_likelihood(counted: NgramCounts) -> Smoothed:
    """Relative frequencies: what never followed a known context can't, and an unknown context is shortened."""
    levels = counted.levels
    probability, weight = [levels[0].counts / levels[0].counts.sum()], list[Floats]()
    for k, level in enumerate(levels[1:], start=1):
        count = np.where(counted.kept[k], level.counts, 0)
        total = _by_context(count, level, levels[k - 1])
        weight.append(np.where(total > 0, 0.0, 1.0))
        probability.append(_over(count.astype(float), total[level.context], 0.0))
    return Smoothed(probability, weight, [])


def add_delta(counted: NgramCounts) -> Smoothed:
    """(count + delta) / (all + delta V) after a context of order - 1 words, or one that reaches back to <s>.

    Every shorter context, and so every unknown one, has all words alike."""
    levels, delta, vocab_size = counted.levels, counted.delta, counted.predictable.sum()
    probability, weight = list[Floats](), list[Floats]()
    alike = counted.predictable / vocab_size
    for k, level in enumerate(levels):
        count = np.where(counted.kept[k], level.counts, 0)
        real = np.full(len(level.word), k + 1 == len(levels))
        if k == 0:
            smoothed = (count + delta * counted.predictable) / (count.sum() + delta * vocab_size)
            probability.append(np.where(real, smoothed, alike))
            continue
        real |= level.leads
        total = _by_context(np.where(real, count, 0), level, levels[k - 1]) + delta * vocab_size
        weight.append(delta * vocab_size / total)
        probability.append(np.where(real, (count + delta) / total[level.context], 1 / vocab_size))
    return Smoothed(probability, weight, [])


def _absolute_discount(counts: Ints, length: int, notes: list[str]) -> float:
    """n1 / (n1 + 2 n2), Ney's estimate; one half where that is 0 or 1."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    if once and twice:
        return once / (once + 2 * twice)
    notes.append(f"back-off: no {length}-gram occurs {'twice' if once else 'once'}: a discount of 0.5 is used")
    return 0.5


def back_off(counted: NgramCounts) -> Smoothed:
    """Absolute discounting: what is taken off the counts goes to unseen words, as the shorter context has them."""
    levels, notes, vocab_size = counted.levels, list[str](), counted.predictable.sum()
    first = levels[0].counts
    discount = _absolute_discount(first, 1, notes)
    unseen = counted.predictable & (first == 0)
    seen = (first > 0).sum()
    if not unseen.any():
        discount = 0.0  # nobody to give it to
    given = discount * seen / max(int(unseen.sum()), 1)
    probability = [np.where(unseen, given, np.maximum(first - discount, 0.0)) / first.sum()]
    weight = list[Floats]()
    for k, level in enumerate(levels[1:], start=1):
        kept, below = counted.kept[k], levels[k - 1]
        discount = _absolute_discount(level.counts, k + 1, notes)
        total = _by_context(level.counts, level, below)
        complete = _by_context(kept, level, below) == vocab_size  # all words follow: nobody to give anything to
        here = (level.counts - discount * ~complete[level.context]) / total[level.context]
        left = 1 - _by_context(here * kept, level, below)
        room = 1 - _by_context(probability[-1][level.suffix] * kept, level, below)
        weight.append(np.where(complete, 1.0, _over(left, np.maximum(room, 1e-300), 1.0)))
        probability.append(here)
    return Smoothed(probability, weight, notes)


SMOOTHINGS: dict[str, Callable[[NgramCounts], Smoothed]] = {
    "kneser-ney": kneser_ney,
    "backoff": back_off,
    "add-delta": add_delta,
    "mle": maximum_likelihood,
}
