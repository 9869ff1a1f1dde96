"""Classification metrics, for one label per example or several.

Definitions follow scikit-learn. Accuracy, exact match, F1 and calibration error are in percent, log loss in nats. Gold labels
that are not in the training data cannot be predicted: they count as errors, and together as one more class, with F1 0.

Shapes: N examples, K labels, R resamples, M confidence bins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.items import Array, Function, ItemStatistics, Score, Sums, total
from weft.metrics.metric import Metric, scores

NUM_BINS = 15  # of confidence (Guo et al. 2017)
MIN_PROBABILITY = float(np.finfo(np.float64).eps)  # lower bound of probabilities in the log loss, as in scikit-learn
THRESHOLD = 0.5  # multi-label models predict the labels with a higher probability


class ClassificationSetup(NamedTuple):
    """Details of the evaluation, for the signature."""

    labels: str  # hash
    multilabel: bool = False
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


def _bins(probs: Array, correct: Array) -> Array:
    """Statistics (N, 3, M) of each confidence bin: number of decisions, sum of their probabilities, number of correct ones.

    probs (N, k) are the probabilities of the decisions, correct (N, k) is bool.
    """
    edges = np.linspace(0, 1, NUM_BINS + 1)
    bins = np.searchsorted(edges[1:-1], probs)
    cells = np.arange(len(probs))[:, None] * NUM_BINS + bins
    weights = (np.ones_like(probs), probs, correct.astype(np.float64))
    sums = [np.bincount(cells.ravel(), weight.ravel(), len(probs) * NUM_BINS) for weight in weights]
    return np.stack(sums, 1).reshape(len(probs), NUM_BINS, 3).swapaxes(1, 2)


def label_items(log_probs: Array, gold: Array, keys: Array) -> ItemStatistics:
    """Statistics of single-label examples: log_probs (N, K), gold (N,), -1 for a label that is not in the training data.

    Keys: examples, exact, unseen, nats, brier_score (N,); gold, predicted, correct (N, K); bins (N, 3, M).
    """
    probs, num_labels = np.exp(log_probs.astype(np.float64)), log_probs.shape[1]
    best, is_known = probs.argmax(1), gold >= 0
    predicted, gold_one_hot = np.zeros_like(probs), np.zeros_like(probs)
    predicted[np.arange(len(gold)), best] = 1.0
    gold_one_hot[is_known, gold[is_known]] = 1.0
    correct = best == gold
    # an unseen gold label has probability 0, which adds (0 - 1)^2
    brier = np.square(probs - gold_one_hot).sum(1) + ~is_known
    statistics = {
        "examples": np.ones(len(gold)),
        "exact": correct.astype(np.float64),
        "unseen": (~is_known).astype(np.float64),
        "nats": -np.log(np.maximum((probs * gold_one_hot).sum(1), MIN_PROBABILITY)),
        "brier_score": brier / 2 if num_labels == 2 else brier,
        "gold": gold_one_hot,
        "predicted": predicted,
        "correct": gold_one_hot * predicted,
        "bins": _bins(probs.max(1, keepdims=True), correct[:, None]),
    }
    return ItemStatistics(keys, statistics)


def multilabel_items(probs: Array, gold: Array, unseen: Array, keys: Array) -> ItemStatistics:
    """Statistics of multi-label examples: probs (N, K), gold (N, K) bool, unseen (N,) the number of gold labels that are not in
    the training data. Keys as in `label_items`; nats and Brier score are means over the K binary decisions."""
    probs, gold_multi_hot = probs.astype(np.float64), gold.astype(np.float64)
    predicted = (probs > THRESHOLD).astype(np.float64)
    gold_probs = np.where(gold, probs, 1 - probs)
    statistics = {
        "examples": np.ones(len(gold)),
        "exact": ((predicted == gold_multi_hot).all(1) & (unseen == 0)).astype(np.float64),
        "unseen": unseen.astype(np.float64),
        "nats": -np.log(np.maximum(gold_probs, MIN_PROBABILITY)).mean(1),
        "brier_score": np.square(probs - gold_multi_hot).mean(1),
        "gold": gold_multi_hot,
        "predicted": predicted,
        "correct": gold_multi_hot * predicted,
        "bins": _bins(probs, gold),
    }
    return ItemStatistics(keys, statistics)


def ratio(numerator: Array, denominator: Array, *, empty: float = 0.0) -> Array:
    """numerator / denominator; `empty` if the denominator is 0."""
    quotient: Array = np.divide(numerator, denominator, out=np.full_like(denominator, empty), where=denominator > 0)
    return quotient


def f1(correct: Array, predicted: Array, gold: Array) -> Array:
    """F1 in percent from counts; 0 if the label is neither predicted nor gold."""
    return 100 * ratio(2 * correct, predicted + gold)


def _mean(name: str, scale: float = 1.0) -> Function:
    def score(totals: Sums) -> Array:
        return scale * ratio(totals[name], totals["examples"], empty=np.nan)

    return score


def _f1_micro(totals: Sums) -> Array:
    return f1(totals["correct"].sum(1), totals["predicted"].sum(1), totals["gold"].sum(1) + totals["unseen"])


def _f1_macro(totals: Sums) -> Array:
    """Mean over the labels that are predicted or gold."""
    per_class = f1(totals["correct"], totals["predicted"], totals["gold"])
    num_classes = (totals["predicted"] + totals["gold"] > 0).sum(1) + (totals["unseen"] > 0)
    return ratio(per_class.sum(1), num_classes.astype(np.float64), empty=np.nan)


def _f1_macro_multilabel(totals: Sums) -> Array:
    """Mean over all labels, as scikit-learn computes it for indicator matrices."""
    per_class = f1(totals["correct"], totals["predicted"], totals["gold"])
    mean: Array = per_class.sum(1) / (per_class.shape[1] + (totals["unseen"] > 0))
    return mean


def _ece(totals: Sums) -> Array:
    """Expected calibration error: mean distance of confidence and accuracy (Naeini et al. 2015)."""
    count, confidence, correct = np.moveaxis(totals["bins"], 1, 0)
    return 100 * ratio(np.abs(confidence - correct).sum(1), count.sum(1), empty=np.nan)


def _suite(accuracy: str, f1_macro: Function) -> tuple[Metric, ...]:
    """The metrics; `accuracy` names the fraction of fully correct examples. F1 over labels is meaningless for one example."""
    return (
        Metric(accuracy, _mean("exact", 100), "higher", percent=True, tie_breaker="log_loss"),
        Metric("f1_macro", f1_macro, "higher", item_metric=accuracy, percent=True),
        Metric("f1_micro", _f1_micro, "higher", item_metric=accuracy, percent=True),
        Metric("log_loss", _mean("nats"), "lower"),
        Metric("brier_score", _mean("brier_score"), "lower"),
        # A resample has fewer distinct examples, so its bins are noisier: the interval would lie above the value.
        Metric("ece", _ece, "lower", interval=False, item_metric="log_loss"),
    )


SINGLE_LABEL = _suite("accuracy", _f1_macro)
MULTI_LABEL = _suite("exact_match", _f1_macro_multilabel)


def label_metrics(*, multilabel: bool) -> tuple[Metric, ...]:
    """The metrics of single-label or multi-label classification."""
    return MULTI_LABEL if multilabel else SINGLE_LABEL


def signature(setup: ClassificationSetup, *, examples: int, unseen: int) -> str:
    """Signature of the scores: everything that they depend on."""
    return (
        f"weft:{__version__}|labels:{setup.labels[:8]}|{'several' if setup.multilabel else 'one'}"
        f"|temperature:{setup.temperature:.4g}|unit:example|examples:{examples}|unseen:{unseen}"
        f"|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )


def label_scores(items: ItemStatistics, setup: ClassificationSetup) -> list[Score]:
    """All scores with their confidence intervals."""
    examples = len(items.keys)
    if not examples:
        raise DataError("evaluate", "no examples to evaluate")
    suite = label_metrics(multilabel=setup.multilabel)
    text = signature(setup, examples=examples, unseen=int(items.statistics["unseen"].sum()))
    return scores(items, suite, text, samples=setup.samples, seed=setup.seed)


def per_label(items: ItemStatistics) -> list[LabelScore]:
    """Scores of each label, in the order of the labels."""
    sums = {name: values[0] for name, values in total(items.statistics).items()}
    correct, predicted, gold = sums["correct"], sums["predicted"], sums["gold"]
    columns = (100 * ratio(correct, predicted), 100 * ratio(correct, gold), f1(correct, predicted, gold), gold.astype(np.int64))
    return [LabelScore(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def confusion(items: ItemStatistics) -> Array:
    """Confusion matrix (K + 1, K) of single-label examples, ints: gold labels in rows, the last one for unseen labels, and
    predicted labels in columns."""
    gold = np.concatenate([items.statistics["gold"], items.statistics["unseen"][:, None]], 1)
    counts: Array = np.rint(gold.T @ items.statistics["predicted"]).astype(np.int64)
    return counts


def reliability(items: ItemStatistics) -> list[Bin]:
    """Points of the reliability diagram: confidence and accuracy of each bin."""
    count, confidence, correct = total(items.statistics)["bins"][0]
    edges = np.linspace(0, 1, NUM_BINS + 1)
    mean_confidence, accuracy = ratio(confidence, count, empty=np.nan), ratio(correct, count, empty=np.nan)
    columns = (edges[:-1], edges[1:], count.astype(np.int64), mean_confidence, accuracy)
    return [Bin(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
