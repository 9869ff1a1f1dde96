"""Smoothing: from n-gram counts to probabilities, by four methods with the same result type.

    P(w | h) = p(hw)            if hw is in the model (not pruned)
             = b(h) P(w | h')   otherwise; h' is h without its first word, and b is 1 for a context without n-grams

With every method, the probabilities after any context sum to 1 over the predictable words.
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
    keep: list[Bools]  # for each level, False for the rows that are pruned; none on level 1
    predictable: Bools  # (V,) False for words that are never predicted
    delta: float  # for add-delta


class SmoothedProbs(NamedTuple):
    """The probability p of every n-gram and the backoff weight b of every context, by level; notes for the user."""

    probability: list[Floats]
    backoff: list[Floats]
    notes: list[str]


def _sum_by_context(values: Floats | Ints | Bools, level: Level, below: Level) -> Floats:
    """The sum of `values` over the n-grams with the same context, for every row of the level below."""
    sums: Floats = np.bincount(level.context, weights=values, minlength=len(below.word)).astype(np.float64, copy=False)
    return sums


def _divide(dividend: Floats, divisor: Floats, default: float) -> Floats:
    """The quotient, or `default` where the divisor is not positive."""
    quotient: Floats = np.divide(dividend, divisor, out=np.full(len(dividend), default), where=divisor > 0)
    return quotient


def _modified_discounts(counts: Ints, length: int, notes: list[str]) -> Floats:
    """Discounts of adjusted counts 0, 1, 2, and 3 or more: equation 26 of Chen and Goodman, if all are in range."""
    n = np.bincount(np.minimum(counts, 5), minlength=6).astype(float)
    if n[1:4].all():
        y = n[1] / (n[1] + 2 * n[2])
        discounts = np.array([0.0] + [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)])
        if (discounts >= 0).all() and (discounts <= [0, 1, 2, 3]).all():
            return discounts
    notes.append(
        f"not enough {length}-grams to estimate Kneser-Ney discounts; "
        f"using {FALLBACK[1]:g}, {FALLBACK[2]:g} and {FALLBACK[3]:g}, as KenLM does"
    )
    return np.array(FALLBACK)


def kneser_ney(counts: NgramCounts) -> SmoothedProbs:
    """Interpolated modified Kneser-Ney (Chen and Goodman 1998): lower orders count the distinct words before an n-gram."""
    levels, notes = counts.levels, list[str]()
    probability, backoff = list[Floats](), list[Floats]()
    lower = counts.predictable / counts.predictable.sum()  # below unigrams: uniform
    for k, level in enumerate(levels):
        adjusted = level.counts
        if k + 1 < len(levels):
            # n-grams at the start of a line have no word before them: they keep their counts
            before = np.bincount(levels[k + 1].suffix, minlength=len(level.word))
            adjusted = np.where(level.starts_with_bos, level.counts, before)
        discount = _modified_discounts(adjusted, k + 1, notes)[np.minimum(adjusted, 3)]
        freed = np.where(counts.keep[k], discount, adjusted)  # the whole count of a pruned n-gram backs off
        if k == 0:
            total = adjusted.sum()
            probability.append((adjusted - discount) / total + freed.sum() / total * lower)
            continue
        total = _sum_by_context(adjusted, level, levels[k - 1])
        weight = _divide(_sum_by_context(freed, level, levels[k - 1]), total, 1.0)
        backoff.append(weight)
        shorter = probability[-1][level.suffix]
        probability.append((adjusted - discount) / total[level.context] + weight[level.context] * shorter)
    return SmoothedProbs(probability, backoff, notes)


def maximum_likelihood(counts: NgramCounts) -> SmoothedProbs:
    """Relative frequencies: an n-gram with an unseen word has probability 0; an unseen context is shortened."""
    levels = counts.levels
    probability, backoff = [levels[0].counts / levels[0].counts.sum()], list[Floats]()
    for k, level in enumerate(levels[1:], start=1):
        count = np.where(counts.keep[k], level.counts, 0)
        total = _sum_by_context(count, level, levels[k - 1])
        backoff.append(np.where(total > 0, 0.0, 1.0))
        probability.append(_divide(count.astype(float), total[level.context], 0.0))
    return SmoothedProbs(probability, backoff, [])


def add_delta(counts: NgramCounts) -> SmoothedProbs:
    """(count + delta) / (total + delta V) after a context of order - 1 words, or one that starts with <s>.

    After every shorter context, and therefore after every unseen one, the distribution is uniform.
    """
    levels, delta, vocab_size = counts.levels, counts.delta, counts.predictable.sum()
    probability, backoff = list[Floats](), list[Floats]()
    uniform = counts.predictable / vocab_size
    for k, level in enumerate(levels):
        count = np.where(counts.keep[k], level.counts, 0)
        is_full = np.full(len(level.word), k + 1 == len(levels))
        if k == 0:
            smoothed = (count + delta * counts.predictable) / (count.sum() + delta * vocab_size)
            probability.append(np.where(is_full, smoothed, uniform))
            continue
        is_full |= level.starts_with_bos
        total = _sum_by_context(np.where(is_full, count, 0), level, levels[k - 1]) + delta * vocab_size
        backoff.append(delta * vocab_size / total)
        probability.append(np.where(is_full, (count + delta) / total[level.context], 1 / vocab_size))
    return SmoothedProbs(probability, backoff, [])


def _absolute_discount(counts: Ints, length: int, notes: list[str]) -> float:
    """n1 / (n1 + 2 n2) (Ney et al. 1994); 0.5 if that is 0 or 1."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    if once and twice:
        return once / (once + 2 * twice)
    notes.append(f"no {length}-gram occurs {'twice' if once else 'once'}; using a backoff discount of 0.5")
    return 0.5


def back_off(counts: NgramCounts) -> SmoothedProbs:
    """Absolute discounting with backoff: the discounted mass goes to unseen words, in proportion to the shorter context."""
    levels, notes, vocab_size = counts.levels, list[str](), counts.predictable.sum()
    first = levels[0].counts
    discount = _absolute_discount(first, 1, notes)
    unseen = counts.predictable & (first == 0)
    if not unseen.any():
        discount = 0.0  # there are no words to give the discounted mass to
    unseen_mass = discount * (first > 0).sum() / max(int(unseen.sum()), 1)
    probability = [np.where(unseen, unseen_mass, np.maximum(first - discount, 0.0)) / first.sum()]
    backoff = list[Floats]()
    for k, level in enumerate(levels[1:], start=1):
        keep, below = counts.keep[k], levels[k - 1]
        discount = _absolute_discount(level.counts, k + 1, notes)
        total = _sum_by_context(level.counts, level, below)
        is_complete = _sum_by_context(keep, level, below) == vocab_size  # every word follows the context: nothing to discount
        discounted = (level.counts - discount * ~is_complete[level.context]) / total[level.context]
        free_mass = 1 - _sum_by_context(discounted * keep, level, below)
        lower_mass = 1 - _sum_by_context(probability[-1][level.suffix] * keep, level, below)
        backoff.append(np.where(is_complete, 1.0, _divide(free_mass, np.maximum(lower_mass, 1e-300), 1.0)))
        probability.append(discounted)
    return SmoothedProbs(probability, backoff, notes)


SMOOTHINGS: dict[str, Callable[[NgramCounts], SmoothedProbs]] = {
    "kneser-ney": kneser_ney,
    "backoff": back_off,
    "add-delta": add_delta,
    "mle": maximum_likelihood,
}
