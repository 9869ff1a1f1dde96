"""The classifiers that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.baseline_tables import BayesTable, RegressionTable
from weft.models.classifier import ClassifierTable
from weft.tasks.classification.baselines import Baseline, fit_bayes, fit_regression
from weft.tasks.classification.network import Classification
from weft.tasks.presets import BLOCKS, FINE_TUNED, PRETRAINED
from weft.tasks.spec import Choice, Preset
from weft.train.network import Network

NETWORK = Network(Classification())
TRAIN: Mapping[str, Any] = {
    "steps": 1000, "batch_tokens": 2048, "lr": 3e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05,
    "label_smoothing": 0.1, "average": 0.99,
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {"layers": 1, "dropout": 0.5, "pool": "max"}
BAYES = (
    Choice("alpha", (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)),
    Choice("events", ("multinomial", "bernoulli")),
    Choice("features.ngrams", ([1, 1], [1, 2], [1, 3])),
    Choice("features.binary", (False, True), ("events", "multinomial")),
    Choice("features.tfidf", (False, True), ("events", "multinomial")),
)
REGRESSION = (
    Choice("C", (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    Choice("features.ngrams", ([1, 1], [1, 2], [1, 3])),
    Choice("features.sublinear", (False, True)),
    Choice("features.min_count", (1, 2)),
)


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, ClassifierTable, values, TRAIN)


PRESETS: Mapping[str, Preset] = {
    "naive-bayes": Preset(Baseline(fit_bayes), BayesTable, choices=BAYES),
    "regression": Preset(Baseline(fit_regression), RegressionTable, choices=REGRESSION),
    "window": _preset({**RECURRENT, "mixer": "window", "context": 3}),
    "rnn": _preset({**RECURRENT, "mixer": "rnn"}),
    "lstm": _preset({**RECURRENT, "mixer": "lstm"}),
    "gru": _preset({**RECURRENT, "mixer": "gru"}),
    "transformer": _preset({**BLOCKS, "pool": "mean"}),
    "bert": Preset(NETWORK, ClassifierTable, {**PRETRAINED, "pool": "first"}, FINE_TUNED),
}
