"""Metrics of language models: cross-entropy and perplexity per token, character, byte and word.

Statistics of an item: nats (negative log-probability of its tokens), tokens, characters, bytes, words. Characters include the
newline of each line. Words are separated by whitespace, and each line end counts as one more word.
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

BLOCK_SIZES = (1000, 500, 200, 100)  # of running text; neighboring blocks that are shorter depend on each other too much
MIN_BLOCKS = 50  # if a block size gives fewer blocks, the next shorter one is used


def block_size(length: int) -> int:
    """Size of the blocks for resampling running text of `length` tokens or bytes: the largest that gives at least MIN_BLOCKS
    blocks, else the smallest."""
    return next((size for size in BLOCK_SIZES if length >= MIN_BLOCKS * size), BLOCK_SIZES[-1])


class EvaluationSetup(NamedTuple):
    """Details of the evaluation, for the signature."""

    context: str  # context policy: "reset:256", "carry", "stride:64/256"
    unit: str  # of resampling: "line" or "block"; the block size follows from the number of tokens
    tokenizer: str  # hash
    samples: int = 1000
    seed: int = 0
    mixture: str = ""  # the runs of a mixture and their weights
    cache: str = ""  # the options of the neural cache


def signature(setup: EvaluationSetup, *, tokens: int) -> str:
    """Signature of the scores: everything that they depend on."""
    unit = f"block/{block_size(tokens)}" if setup.unit == "block" else setup.unit
    mixture = f"|mixture:{setup.mixture}" if setup.mixture else ""
    cache = f"|cache:{setup.cache}" if setup.cache else ""
    return (
        f"weft:{__version__}|context:{setup.context}{mixture}{cache}|unit:{unit}|tokens:{tokens}"
        f"|resamples:{setup.samples}|seed:{setup.seed}|interval:95%|tokenizer:{setup.tokenizer[:8]}"
    )


def _rate(unit: str, scale: Callable[[Array], Array]) -> Function:
    def score(totals: Sums) -> Array:
        count = totals[unit]
        # a resample may have no unit of this kind: its value is NaN, and the interval ignores it
        rate = np.divide(totals["nats"], count, out=np.full_like(count, np.nan), where=count > 0)
        with np.errstate(over="ignore"):  # a perplexity may overflow to infinity
            return scale(rate)

    return score


def _nats(rate: Array) -> Array:
    return rate


def _bits(rate: Array) -> Array:
    return rate / math.log(2)


def _per(unit: str, name: str, scale: Callable[[Array], Array]) -> Metric:
    return Metric(name, _rate(unit, scale), "lower", requires=unit, per_token=unit == "tokens")


LANGUAGE = (
    _per("tokens", "loss", _nats),
    _per("tokens", "bits_per_token", _bits),
    _per("tokens", "perplexity", np.exp),
    _per("characters", "bits_per_char", _bits),
    _per("bytes", "bits_per_byte", _bits),
    _per("words", "bits_per_word", _bits),
    _per("words", "word_perplexity", np.exp),
)
LOSSES = tuple(metric for metric in LANGUAGE if metric.per_token)  # if characters, bytes and words are not counted
LANGUAGE_VALIDATION = LANGUAGE[:1]


def language_scores(items: ItemStatistics, setup: EvaluationSetup) -> list[Score]:
    """Scores for each unit that is counted and occurs, with confidence intervals."""
    tokens = int(items.statistics["tokens"].sum()) if "tokens" in items.statistics else 0
    if not tokens:
        raise DataError("evaluate", "no tokens to evaluate")
    return scores(items, LANGUAGE, signature(setup, tokens=tokens), samples=setup.samples, seed=setup.seed)
