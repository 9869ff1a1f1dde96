"""Scores of language models, from nats and counts of what was predicted.

An item's statistics: nats (the negative log-probability of its tokens), tokens, characters, bytes, words. Characters
include the newline of each line; words are separated by whitespace, and each line end counts as one more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.items import Array, Function, ItemStatistics, Score, Sums
from weft.metrics.metric import Metric, scores

BLOCKS = (1000, 500, 200, 100)  # how long a block of running text may be; below that neighbours have too much in common
MIN_BLOCKS = 50  # blocks: with fewer a shorter one is taken


def block_size(length: int) -> int:
    """The length of the blocks by which running text of this many tokens or bytes is resampled: the longest that gives enough
    of them, else the shortest."""
    return next((size for size in BLOCKS if length >= MIN_BLOCKS * size), BLOCKS[-1])


class EvaluationSetup(NamedTuple):
    """How the items were measured, for the signature."""

    context: str  # what a token is predicted from: "reset:256", "carry", "stride:64/256"
    unit: str  # of resampling: "line", or "block", whose size follows from the number of tokens
    tokenizer: str  # hash
    samples: int = 1000
    seed: int = 0


def signature(setup: EvaluationSetup, *, tokens: int) -> str:
    """Every choice behind a score, named."""
    unit = f"block/{block_size(tokens)}" if setup.unit == "block" else setup.unit
    return (
        f"weft:{__version__}|context:{setup.context}|unit:{unit}|tokens:{tokens}"
        f"|resamples:{setup.samples}|seed:{setup.seed}|interval:95%|tokenizer:{setup.tokenizer[:8]}"
    )


def _rate(unit: str, scale: Callable[[Array], Array]) -> Function:
    def score(totals: Sums) -> Array:
        count = totals[unit]
        # a resample may hold nothing of a unit: its rate is not a number, and left out
        rate = np.divide(totals["nats"], count, out=np.full_like(count, np.nan), where=count > 0)
        with np.errstate(over="ignore"):  # a perplexity beyond the largest number is infinite
            return scale(rate)

    return score


def _nats(rate: Array) -> Array:
    return rate


def _bits(rate: Array) -> Array:
    return rate / math.log(2)


def _per(unit: str, name: str, scale: Callable[[Array], Array]) -> Metric:
    return Metric(name, _rate(unit, scale), "lower", needs=unit, per_token=unit == "tokens")


LANGUAGE = (
    _per("tokens", "loss", _nats),
    _per("tokens", "bits_per_token", _bits),
    _per("tokens", "perplexity", np.exp),
    _per("characters", "bits_per_char", _bits),
    _per("bytes", "bits_per_byte", _bits),
    _per("words", "bits_per_word", _bits),
    _per("words", "word_perplexity", np.exp),
)
LOSSES = tuple(metric for metric in LANGUAGE if metric.per_token)  # of texts whose characters and words nobody counts
LANGUAGE_VALIDATION = LANGUAGE[:1]


def language_scores(items: ItemStatistics, setup: EvaluationSetup) -> list[Score]:
    """Every score whose unit was counted and occurs, with its interval."""
    tokens = int(items.statistics["tokens"].sum()) if "tokens" in items.statistics else 0
    if not tokens:
        raise DataError("evaluate", "no tokens to evaluate")
    named = signature(setup, tokens=tokens)
    return scores(items, LANGUAGE, named, samples=setup.samples, seed=setup.seed)
