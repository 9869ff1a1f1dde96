"""The classifiers that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.baseline_tables import BayesTable, RegressionTable
from weft.models.classifier import ClassifierTable
from weft.tasks.classification.baselines import Baseline, fit_bayes, fit_regression
from weft.tasks.classification.network import Classification
from weft.tasks.presets import BLOCKS, FINE_TUNED, PRETRAINED
from weft.tasks.spec import Preset
from weft.train.network import Network

NETWORK = Network(Classification())
TRAIN: Mapping[str, Any] = {
    "steps": 1000, "batch_tokens": 2048, "lr": 3e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05,
    "label_smoothing": 0.1, "average": 0.99,
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {"layers": 1, "dropout": 0.5, "pool": "max"}


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, ClassifierTable, values, TRAIN)


PRESETS: Mapping[str, Preset] = {
    "naive-bayes": Preset(Baseline(fit_bayes), BayesTable),
    "regression": Preset(Baseline(fit_regression), RegressionTable),
    "window": _preset({**RECURRENT, "mixer": "window", "context": 3}),
    "rnn": _preset({**RECURRENT, "mixer": "rnn"}),
    "lstm": _preset({**RECURRENT, "mixer": "lstm"}),
    "gru": _preset({**RECURRENT, "mixer": "gru"}),
    "transformer": _preset({**BLOCKS, "pool": "mean"}),
    "bert": Preset(NETWORK, ClassifierTable, {**PRETRAINED, "pool": "first"}, FINE_TUNED),
}
