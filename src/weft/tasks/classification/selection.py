"""Chooses the options of a baseline that are not set: those with the lowest log loss on validation data.

The log loss after temperature scaling depends smoothly on an option; the accuracy on a few hundred examples is mostly noise.
Without validation data, the options are chosen by cross-validation on the training data.

Shapes: N texts, K labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np

from weft.config import Config, to_dict
from weft.metrics.calibration import sigmoid_temperature, softmax_temperature
from weft.models.linear import LinearModel, log_sigmoid, log_softmax
from weft.tasks.classification.evaluation import balance, score_predictions
from weft.text.feature_union import MAX_CHARS, FeatureUnion
from weft.text.features import Sparse, hstack

FEATURES = "features"  # the option with a feature extractor for each value
NUM_FOLDS = 5
MIN_LOSS = 1.0  # nats, for all examples together; below it, the first candidate wins: no error tells which is better
MAX_FOLDED = 20_000  # examples; with more, the first fold alone is a large validation set


class Examples(NamedTuple):
    """Texts and their labels."""

    texts: list[tuple[str, ...]]  # (N,)
    targets: np.ndarray  # (N, 1) label IDs, or (N, K) multi-hot
    unseen: np.ndarray  # (N,) how many of its labels the training data lacks
    multilabel: bool

    def columns(self) -> list[tuple[str, ...]]:
        """The texts by column: one, or two for pairs of texts."""
        return list(zip(*self.texts, strict=True))

    def select(self, rows: np.ndarray) -> Examples:
        return self._replace(texts=[self.texts[row] for row in rows], targets=self.targets[rows], unseen=self.unseen[rows])


class TrainingSet(NamedTuple):
    """The input of a fit."""

    features: Sparse  # (N, terms)
    targets: Any  # (N,) label IDs, or (N, K) bool
    num_labels: int
    class_weight: np.ndarray | None  # (K,)


# fits a linear model for comparison with others; the last argument is the previous model of the path, to start from
SearchFit = Callable[[TrainingSet, Any, LinearModel | None], LinearModel]


class OptionValues(NamedTuple):
    """The values that are tried for an option which is not set."""

    option: str
    values: Sequence[Any]
    default: Any  # if it cannot be chosen
    is_ordered: bool = False  # the loss falls and then rises along the values; at most one option of a model


def featurize(features: Sequence[FeatureUnion], texts: Sequence[tuple[str, ...]]) -> Sparse:
    """Sparse features, one row per example; the features of text pairs are concatenated."""
    columns = zip(*texts, strict=True)
    return hstack([extractor.transform(column) for extractor, column in zip(features, columns, strict=True)])


def training_set(features: Sequence[FeatureUnion], examples: Examples, num_labels: int, config: Any) -> TrainingSet:
    weights = balance(examples.targets, num_labels).astype(np.float64) if config.class_weight == "balanced" else None
    targets = examples.targets.astype(bool) if examples.multilabel else examples.targets[:, 0]
    return TrainingSet(featurize(features, examples.texts), targets, num_labels, weights)


def calibrate(logits: np.ndarray, examples: Examples) -> float:
    """The temperature that fits the labels best."""
    gold = examples.targets
    return sigmoid_temperature(logits, gold) if examples.multilabel else softmax_temperature(logits, gold[:, 0])


def _total_log_loss(logits: np.ndarray, examples: Examples) -> float:
    scaled = logits / calibrate(logits, examples)
    log_probs = log_sigmoid(scaled) if examples.multilabel else log_softmax(scaled)
    items = score_predictions(log_probs, examples.targets, examples.unseen, multilabel=examples.multilabel)
    return float(items.statistics["nats"].sum())


# ---- candidates


def _names(value: Any) -> dict[str, Any]:
    """The options of a table by name; {"": value} if the value is not a table."""
    return to_dict(value) if isinstance(value, Config) else {"": value}


def describe(config: Any, choices: Sequence[OptionValues]) -> str:
    """The chosen values, as in `C = 10` and `features.ngram_range = [1, 2]`; options of a table only if their values differ."""
    parts = list[str]()
    for option, candidates, *_ in choices:
        for name, value in _names(getattr(config, option)).items():
            if any(_names(candidate)[name] != value for candidate in candidates):
                parts.append(f"{'.'.join(filter(None, (option, name)))} = {_format(value)}")
    return ", ".join(parts)


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _combinations(config: Any, choices: Sequence[OptionValues]) -> list[Any]:
    """The configuration with every combination of values; the last option changes fastest."""
    names = [choice.option for choice in choices]
    grid = product(*(choice.values for choice in choices))
    return [config.model_copy(update=dict(zip(names, row, strict=True))) for row in grid]


def _paths(config: Any, choices: Sequence[OptionValues]) -> list[list[Any]]:
    """All configurations to try. Those of a path differ in the ordered option alone."""
    unordered = [choice for choice in choices if not choice.is_ordered]
    ordered = [choice for choice in choices if choice.is_ordered]
    return [_combinations(base, ordered) for base in _combinations(config, unordered)]


# ---- choosing


def _folds(examples: Examples) -> list[tuple[Examples, Examples]]:
    """Training and validation examples of each fold, stratified by the labels."""
    order = np.lexsort(examples.targets.T[::-1])
    fold = np.empty(len(order), np.int64)
    fold[order] = np.arange(len(order)) % NUM_FOLDS
    masks = [fold == index for index in range(1 if len(order) > MAX_FOLDED else NUM_FOLDS)]
    return [(examples.select(np.flatnonzero(~mask)), examples.select(np.flatnonzero(mask))) for mask in masks]


def _path_losses(path: Sequence[Any], fit: SearchFit, data: TrainingSet, inputs: Sparse, valid: Examples) -> list[float]:
    """The log loss of each configuration of a path. It has one minimum: where it rises, the rest is skipped (inf)."""
    losses = list[float]()
    model: LinearModel | None = None
    for config in path:
        model = fit(data, config, model)
        losses.append(_total_log_loss(model.logits(inputs), valid))
        if len(losses) > 1 and losses[-1] > losses[-2]:
            break
    return losses + [math.inf] * (len(path) - len(losses))


def choose(
    config: Any,
    choices: Sequence[OptionValues],
    fit: SearchFit,
    train: Examples,
    valid: Examples | None,
    *,
    num_labels: int,
    progress: Callable[[int, int], None],
) -> Any:
    """The configuration with the best values of the options in `choices`. N-grams of much text are expensive, so features are
    only chosen for little text."""
    num_chars = sum(len(text) for texts in train.texts for text in texts)
    is_tiny = valid is None and len(train.texts) < 2 * NUM_FOLDS
    fixed = [choice for choice in choices if is_tiny or (choice.option == FEATURES and num_chars > MAX_CHARS)]
    config = config.model_copy(update={choice.option: choice.default for choice in fixed})
    paths = _paths(config, [choice for choice in choices if choice not in fixed])
    candidates = [candidate for path in paths for candidate in path]
    if len(candidates) == 1:
        return candidates[0]
    splits, done = _folds(train) if valid is None else [(train, valid)], 0
    losses = np.zeros(len(candidates))
    for part, rest in splits:
        split_losses = list[float]()
        for features_config, group in groupby(paths, key=lambda path: path[0].features):
            features = [FeatureUnion.fit(column, features_config) for column in part.columns()]
            data, inputs = training_set(features, part, num_labels, config), featurize(features, rest.texts)
            for path in group:
                split_losses += _path_losses(path, fit, data, inputs, rest)
                done += 1
                progress(done, len(paths) * len(splits))
        losses += split_losses
    return candidates[int(np.maximum(losses, MIN_LOSS).argmin())]
