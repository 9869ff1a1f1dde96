"""Classification metrics, for one label per example or several.

Definitions are scikit-learn's. Accuracy, exact match, F1 and calibration error are in percent, log loss in nats. A label that
training never saw can't be said: it counts as wrong, and as one more class, of F1 0.

Shapes: N examples, K labels, R resamples, M bins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.items import Array, Function, ItemStatistics, Score, Sums, total
from weft.metrics.metric import Metric, scores

BINS = 15  # of confidence (Guo et al. 2017)
MIN_PROBABILITY = float(np.finfo(np.float64).eps)  # no probability counts as less in the log loss, as in scikit-learn's
THRESHOLD = 0.5  # multilabel models predict the labels with a higher probability


class LabeledSplit(NamedTuple):
    """Details of the evaluation, for the signature."""

    labels: str  # hash
    multilabel: bool = False  # labels an example
    temperature: float = 1.0
    samples: int = 1000
    seed: int = 0


class LabelScore(NamedTuple):
    """Scores of one label in percent, and its support."""

    precision: float
    recall: float
    f1: float
    support: int


class Bin(NamedTuple):
    """A confidence bin: predictions with a probability in (low, high]."""

    low: float
    high: float
    size: int
    confidence: float  # mean probability; NaN if the bin is empty
    accuracy: float  # fraction of correct predictions


def _bins(probs: Array, right: Array) -> Array:
    """What was said (N, k) by its probability, (N, 3, M): how many, their probabilities, how many of them were right."""
    edges = np.linspace(0, 1, BINS + 1)
    at = np.searchsorted(edges[1:-1], probs)
    places = np.arange(len(probs))[:, None] * BINS + at
    weights = (np.ones_like(probs), probs, right.astype(np.float64))
    counted = [np.bincount(places.ravel(), weight.ravel(), len(probs) * BINS) for weight in weights]
    return np.stack(counted, 1).reshape(len(probs), BINS, 3).swapaxes(1, 2)


def label_items(log_probs: Array, gold: Array, keys: Array) -> ItemStatistics:
    """The statistics of examples with one label each: log_probs (N, K), gold (N,), -1 for a label that training never saw.

    Of each: examples, exact, unseen, nats, brier_score (N,); meant, said, both (N, K); bins (N, 3, M).
    """
    probs, count = np.exp(log_probs.astype(np.float64)), log_probs.shape[1]
    best, is_known = probs.argmax(1), gold >= 0
    predicted, meant = np.zeros_like(probs), np.zeros_like(probs)
    predicted[np.arange(len(gold)), best] = 1.0
    meant[is_known, gold[is_known]] = 1.0
    correct = best == gold
    # the square of what an unseen label did not get is 1
    brier = np.square(probs - meant).sum(1) + ~is_known
    statistics = {
        "examples": np.ones(len(gold)),
        "exact": correct.astype(np.float64),
        "unseen": (~is_known).astype(np.float64),
        "nats": -np.log(np.maximum((probs * meant).sum(1), MIN_PROBABILITY)),
        "brier_score": brier / 2 if count == 2 else brier,
        "meant": meant,
        "said": predicted,
        "both": meant * predicted,
        "bins": _bins(probs.max(1, keepdims=True), correct[:, None]),
    }
    return ItemStatistics(keys, statistics)


def multilabel_items(probs: Array, gold: Array, unseen: Array, keys: Array) -> ItemStatistics:
    """The statistics of examples with several labels each, or none: probs (N, K), gold (N, K) bool, unseen (N,) how many of an
    example's labels are not in the training data. As `label_items`; nats and Brier score are means over K decisions."""
    probs, meant = probs.astype(np.float64), gold.astype(np.float64)
    predicted = (probs > THRESHOLD).astype(np.float64)
    held = np.where(gold, probs, 1 - probs)
    statistics = {
        "examples": np.ones(len(gold)),
        "exact": ((predicted == meant).all(1) & (unseen == 0)).astype(np.float64),
        "unseen": unseen.astype(np.float64),
        "nats": -np.log(np.maximum(held, MIN_PROBABILITY)).mean(1),
        "brier_score": np.square(probs - meant).mean(1),
        "meant": meant,
        "said": predicted,
        "both": meant * predicted,
        "bins": _bins(probs, gold),
    }
    return ItemStatistics(keys, statistics)


def ratio(part: Array, whole: Array, *, empty: float = 0.0) -> Array:
    """part / whole; `empty` if whole is 0."""
    quotient: Array = np.divide(part, whole, out=np.full_like(whole, empty), where=whole > 0)
    return quotient


def f1(both: Array, predicted: Array, gold: Array) -> Array:
    """F1 in percent from counts; 0 if the label is neither predicted nor gold."""
    return 100 * ratio(2 * both, predicted + gold)


def _mean(name: str, scale: float = 1.0) -> Function:
    def score(totals: Sums) -> Array:
        return scale * ratio(totals[name], totals["examples"], empty=np.nan)

    return score


def _f1_micro(totals: Sums) -> Array:
    return f1(totals["both"].sum(1), totals["said"].sum(1), totals["meant"].sum(1) + totals["unseen"])


def _f1_macro(totals: Sums) -> Array:
    """Over the labels that are predicted or gold."""
    per_class = f1(totals["both"], totals["said"], totals["meant"])
    occur = (totals["said"] + totals["meant"] > 0).sum(1) + (totals["unseen"] > 0)
    return ratio(per_class.sum(1), occur.astype(np.float64), empty=np.nan)


def _macro_f1_of_all(totals: Sums) -> Array:
    """Over all labels."""
    per_class = f1(totals["both"], totals["said"], totals["meant"])
    mean: Array = per_class.sum(1) / (per_class.shape[1] + (totals["unseen"] > 0))
    return mean


def _ece(totals: Sums) -> Array:
    """Expected calibration error: mean distance of confidence and accuracy (Naeini et al. 2015)."""
    count, confidence, correct = np.moveaxis(totals["bins"], 1, 0)
    return 100 * ratio(np.abs(confidence - correct).sum(1), count.sum(1), empty=np.nan)


def _suite(right: str, macro_f1: Function) -> tuple[Metric, ...]:
    """`right` is what a wholly right example is called; F1 over labels says nothing of one example."""
    return (
        Metric(right, _mean("exact", 100), "higher", percent=True, finer="log_loss"),
        Metric("f1_macro", macro_f1, "higher", single=right, percent=True),
        Metric("f1_micro", _f1_micro, "higher", single=right, percent=True),
        Metric("log_loss", _mean("nats"), "lower"),
        Metric("brier_score", _mean("brier_score"), "lower"),
        # a resample has fewer different examples, so its bins stray more: the interval would lie above the value
        Metric("ece", _ece, "lower", interval=False, single="log_loss"),
    )


SINGLE_LABEL = _suite("accuracy", _f1_macro)
MULTI_LABEL = _suite("exact_match", _macro_f1_of_all)


def label_metrics(*, multilabel: bool) -> tuple[Metric, ...]:
    """The metrics for one label per example or several."""
    return MULTI_LABEL if multilabel else SINGLE_LABEL


def signature(setup: LabeledSplit, *, examples: int, unseen: int) -> str:
    """The signature: all details that scores depend on."""
    return (
        f"weft:{__version__}|labels:{setup.labels[:8]}|{'several' if setup.multilabel else 'one'}"
        f"|temperature:{setup.temperature:.4g}|unit:example|examples:{examples}|unseen:{unseen}"
        f"|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )


def label_scores(items: ItemStatistics, setup: LabeledSplit) -> list[Score]:
    """All scores with their intervals."""
    examples = len(items.keys)
    if not examples:
        raise DataError("evaluate", "no examples to evaluate")
    named = signature(setup, examples=examples, unseen=int(items.statistics["unseen"].sum()))
    suite = MULTI_LABEL if setup.multilabel else SINGLE_LABEL
    return scores(items, suite, named, samples=setup.samples, seed=setup.seed)


def per_label(items: ItemStatistics) -> list[LabelScore]:
    """The scores of each label, in order."""
    sums = {name: values[0] for name, values in total(items.statistics).items()}
    correct, predicted, gold = sums["both"], sums["said"], sums["meant"]
    columns = (100 * ratio(correct, predicted), 100 * ratio(correct, gold), f1(correct, predicted, gold), gold.astype(np.int64))
    return [LabelScore(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def confusion(items: ItemStatistics) -> Array:
    """Of examples with one label each, how often each was said for each, (K + 1, K), ints: rows are what was meant, the last
    what training never saw."""
    gold = np.concatenate([items.statistics["meant"], items.statistics["unseen"][:, None]], 1)
    counts: Array = np.rint(gold.T @ items.statistics["said"]).astype(np.int64)
    return counts


def reliability(items: ItemStatistics) -> list[Bin]:
    """The reliability curve: accuracy by confidence bin."""
    count, confidence, correct = total(items.statistics)["bins"][0]
    edges = np.linspace(0, 1, BINS + 1)
    columns = (edges[:-1], edges[1:], count.astype(np.int64), ratio(confidence, count, empty=np.nan))
    rows = zip(*(column.tolist() for column in (*columns, ratio(correct, count, empty=np.nan))), strict=True)
    return [Bin(*row) for row in rows]
